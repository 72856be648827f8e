"""The mutants: faults that a hand slips into, each of which must make a test fail.

Every file of merge, ivm and store has some, spread over its rules: a comparison that is off by one
row, a guard that is left out, a sign, the wrong one of two sides. Beside them are the places where
other rooms keep what these rooms promise: the log of a table, retention, halts, memory, offsets;
and the sinks that follow views.
"""

from __future__ import annotations

from tests.mutation.faults import Mutant


def _of(file: str, *faults: tuple[str, ...]) -> list[Mutant]:
    return [Mutant(file, *fault) for fault in faults]


_MERGE = [
    *_of(
        "mview/merge/net.py",
        ("_bools(pc.less_equal(position, floor))", "_bools(pc.less(position, floor))"),
        ("lowest > floor and", "lowest >= floor and"),
        ("before = pc.less(position", "before = pc.less_equal(position"),
        ('max(marks.get(partition, ""), top)', "top"),
        ("rows.filter(pc.greater(rows[by], at))", "rows.filter(pc.greater_equal(rows[by], at))"),
        ('by = ["__position", "__offset"] if', 'by = ["__offset"] if'),
        ("(_where(before, changed), updated, -1)", "(before, new_key[has_old], -1)"),
        ("(_where(new_rows, ~has_old), new_key[~has_old], 1)", "(new_rows, new_key, 1)"),
        ("removed = at[gone_key][at[gone_key] >= 0]", "removed = at[gone_key][at[gone_key] > 0]"),
        ("np.setdiff1d(np.arange(len(old_key)), places)", "np.arange(len(old_key))"),
        ("mask & (netted.truncated | (places < 0))", "mask & (places < 0)"),
        ("known = source >= starts", "known = source > starts"),
        ("np.append(np.diff(key[order]), 1)", "np.append(1, np.diff(key[order]))"),
        ('floor = [marks.get(EVERY_PARTITION, ""), ', 'floor = ["", '),
        (' and row["__source_ms"] > ms:', ' and row["__source_ms"] >= ms:'),
        ("if ahead if by == ", "if others if by == "),
        (
            "        if rows[name].null_count:\n            bad",
            "        if False:\n            bad",
        ),
        ("if not column.nullable and rows", "if column.nullable and rows"),
        ("if len(old_key) != np.count_nonzero(at >= 0):", "if False:"),
        ("if len(sizes | {len(mark) for mark in marks}) > 1:", "if len(sizes) > 1:"),
        ("if (deletes[source] & (source != last)).any():", "if deletes[source].all():"),
    ),
    *_of(
        "mview/merge/rules.py",
        ("may_release = state.phase is Phase.BUFFERED", "may_release = True"),
        ("watermark <= release_ms(", "watermark < release_ms("),
        ("if state.phase is not Phase.UNREAD:", "if state.phase is Phase.RELEASED:"),
        ("state = on_marker(state, min(", "state = on_marker(state, max("),
        ("    if state.emptied:\n        marker", "    if False:\n        marker"),
        ("SourceMs(marker.high_ms + table.delay_ms)", "SourceMs(marker.high_ms)"),
        ("    if table.begin:\n", "    if False:\n"),
        ("if state.emptied or pc.any(", "if pc.any("),
        ("if watermark >= END_OF_TIME:", "if watermark > END_OF_TIME:"),
        (
            "return released, Release(marker, state.seen)",
            "return released, Release(marker, released.seen)",
        ),
        (
            "return cls(KeySet.from_bytes(data[end:]), phase, staged, emptied)",
            "return cls(KeySet.from_bytes(data[end:]), phase, staged)",
        ),
    ),
    *_of(
        "mview/rows/key_sets.py",
        ("np.union1d(self.values, other.values)", "other.values"),
        ('struct.pack("<I", len(text)) + text', "text"),
        ("flat(canonical(column.cast(field.type)))", "flat(column.cast(field.type))"),
        (
            "there: npt.NDArray[np.bool_] = self.values[at] == wanted",
            "there: npt.NDArray[np.bool_] = self.values[at] >= wanted",
        ),
        ("    if len(key) != 1:\n        return False\n", ""),
        ("and len(body) % _DIGEST == 0", ""),
    ),
    *_of(
        "tests/models/merge.py",
        (
            "watermark > chunk.read.high_ms + self.delay",
            "watermark >= chunk.read.high_ms + self.delay",
        ),
        ("e.position > self.floor and ", ""),
        ("return chunk.emptied or key in chunk.seen", "return key in chunk.seen"),
        ("event.position <= self.begin.get", "event.position < self.begin.get"),
    ),
    *_of(
        "mview/merge/stateful.py",
        ("if len(changes) + len(halts) < len(rows):", "if False:"),
        ("if new != old or not stored:", "if not stored:", "tests/merge/test_stateful.py"),
        (
            "return changes if release is None else [*changes, _release_row(key, release)]",
            "return changes if release is None else [_release_row(key, release)]",
            "tests/merge/test_stateful.py",
        ),
    ),
]

_IVM = [
    *_of(
        "mview/execute/slices.py",
        ("weighted(new, 1), weighted(old, -1)", "weighted(new, 1), weighted(old, 1)"),
        (
            "np.flatnonzero(summed[WEIGHT].to_numpy())",
            "np.arange(summed.num_rows)",
            "tests/rows/test_equality.py",
        ),
        ("weights[number] = 0", "pass"),
        ("pa.concat_tables([kept, come]) if come.num_rows else kept", "kept"),
        ("gone.num_rows :]] = True", "gone.num_rows :]] = False"),
        ("if not null_safe and any(", "if any("),
        ("    if or_null:\n", "    if False:\n"),
        ("pc.less_equal(values, high)", "pc.less(values, high)"),
        (
            "has_floats(kind) or ",
            "",
            "tests/rows/test_equality.py",
        ),
        (
            "[as_shown(columns) if signs else columns]",
            "[columns]",
            "tests/rows/test_equality.py",
        ),
        ("row_codes([as_shown(rows)])", "row_codes([rows])"),
        ("same &= ~self._differs(name, updates)", "same |= ~self._differs(name, updates)"),
        ("if (times != 1).any():", "if False:"),
        ("~np.isin(told[first], told[part == len(parts)])", "told[first] >= 0"),
    ),
    *_of(
        "mview/execute/kept/sums.py",
        ("{'>' if kind == 'min' else '<'}", "{'<' if kind == 'min' else '>'}"),
        ("kind.precision <= _ROOMY", "kind.precision <= 38"),
        ("pc.subtract(pc.add(kept, come), gone)", "pc.add(pc.add(kept, come), gone)"),
        ("({come} IS NULL OR {beyond})", "{beyond}"),
        ("({come} = {gone} AND (", "({come} IS NULL AND ("),
        ("totals[code] += number * weight", "totals[code] += number"),
    ),
    *_of(
        "mview/execute/local/paired.py",
        ("exp.and_(on, same, copy=False)", "on"),
        ('group.append("expressions", first.copy())', "pass"),
        ("    if select != again or len(", "    if len("),
        ("            return False  # the mark would be in it", "            continue"),
    ),
    *_of(
        "mview/ivm/tracing/trace.py",
        ('if node.kind == "union all":', "if True:"),
        ('node.kind in ("inner", "semi") or', 'node.kind != "mark" or'),
        ('optional = ("right", "full") if', 'optional = ("full",) if'),
        ('"semi", "anti", "mark")', '"semi", "mark")'),
        (
            "self._complete(node, node.child, env, partition_columns(node), note)",
            "{}",
        ),
        ("return merge(env, self._complete(node, node.child, env, columns, note))", "return env"),
        ("        return merge(env, self._outward(node, from_left, env))", "        return env"),
        ("if node.null_aware and not from_left:", "if False:"),
        ("if set(keys.columns) <= set(partition):", "if True:"),
        ("            if here is value:\n", "            if here is not value:\n"),
        ("return NULL_EXTENDED if columns and extended else note", "return note"),
        (
            "if node.pairs or node.null_aware:\n        return None",
            "if node.null_aware:\n        return None",
        ),
    ),
    *_of(
        "mview/ivm/aggregates/maintained.py",
        ("always=not groups", "always=False"),
        ("kept.extremes[extreme] = kind", 'kept.extremes[extreme] = "min"'),
        ("CASE WHEN {count} > 0 THEN", "CASE WHEN {count} >= 0 THEN"),
        ("\" WHERE {' AND '.join(f'({value})' for value in tests)}\" if tests else \"\"", '""'),
        ("or aggregate.repeats", "or False"),
        ("return None if top.having else shown", "return shown"),
        ('if kind == "int" else "v"', 'if kind == "" else "v"'),
        ("{holds} = {tells}", "{holds} > 0"),
        ("or is_known(kind)", "or True"),
        ("kept.wide.add(total)", "pass"),
    ),
    *_of(
        "mview/ivm/aggregates/averages.py",
        ("_ROUND.quantize(_DIVIDE.divide(", "_DIVIDE.quantize(_DIVIDE.divide("),
        ("if kind.precision <= _DIGITS_OF_DOUBLE:", "if False:"),
        ("if total.precision >= _MOST_DIGITS:", "if total.precision > _MOST_DIGITS:"),
        ("divide(dividend, count) if count else None", "divide(dividend, count or 1)"),
    ),
    *_of(
        "mview/execute/kept/top.py",
        ("if inside.num_rows >= top.least else None", "if inside.num_rows >= 1 else None"),
        ("ordered.slice(0, end + keeps_last + 1)", "ordered"),
        ("end + 1 < ordered.num_rows and _same(ordered, end)", "False"),
    ),
    *_of(
        "mview/ivm/rewrites/top.py",
        ("state.slice(self.offset, self.limit)", "state.slice(0, self.limit)"),
    ),
    *_of(
        "mview/ivm/tracing/bands.py",
        ('[(above.args["low"], side), (above.args["high"], side)]', '[(above.args["low"], side)]'),
        ("if not made or None in made:", "if not made:"),
        ("and is_faithful(side)", ""),
        ("all(ir.as_ref(column) == value for column in columns)", "True"),
    ),
    *_of(
        "mview/ivm/facts/keys.py",
        (
            'if node.kind in ("semi", "anti", "mark"):',
            'if node.kind in ("semi", "anti", "mark", "left"):',
        ),
        ("return None if node.all else node.columns", "return node.columns"),
        ("or not isinstance(test, exp.EQ) or test", "or test"),
        ("if set(right) <= {pair.right for pair in pairs}:", "if True:"),
        ("return (*left, *right)", "return left"),
        ("if number is None or None in refs:", "if number is None:"),
    ),
    *_of(
        "mview/ivm/tracing/fetches.py",
        ("if null_safe and nullable and other.extended:", "if False:"),
        ("has_key = bool(key) and key <= set(columns)", "has_key = bool(key)"),
        (
            "return Keys(tuple(other[p] for p in best), tuple(first), safe, safe and extended)",
            "return Keys(tuple(other[p] for p in best), tuple(first), safe, False)",
        ),
        ("known = () if isinstance(step, Whole) else whole", "known = whole"),
        ("usable = _without_repeats(usable, targets)", "usable = usable"),
    ),
    *_of(
        "mview/ivm/facts/exact.py",
        ('"decimal" if "." in literal.name else "int"', '"int"'),
        ('return kind if kind == "decimal" else None', "return kind"),
        ("if not known or None in known:", "if not known:"),
        ("return None if None in kinds else", "return"),
        ("pa.types.is_floating(kind) or pa.types.is_nested", "pa.types.is_nested"),
        ("return bool(kind.scale == other.scale)", "return True"),
    ),
    *_of(
        "mview/ivm/facts/lineage.py",
        ("any(position not in group for group in node.sets)", "False"),
        (
            "alternatives = [tuple(map(_extended, alternative)) for alternative in alternatives]",
            "pass",
        ),
        ("_side_by_side(node, lefts) + _side_by_side(node, rights)", "_side_by_side(node, lefts)"),
        ("        for branch in node.branches\n", "        for branch in node.branches[:1]\n"),
    ),
    *_of(
        "mview/ivm/rewrites/not_in.py",
        ("count(*) = 0 AS none", "count(*) > 0 AS none"),
        ("count(*) > count(__x) AS some", "count(*) = count(__x) AS some"),
        ("x IS NOT NULL AND NOT has_null", "NOT has_null"),
        ("and is_condition(above)", ""),
    ),
    *_of(
        "mview/ivm/rewrites/one_group.py",
        ('"x IS NOT NULL"', '"x IS NULL"'),
        ("CASE WHEN c THEN (v) END", "CASE WHEN true OR c THEN (v) END"),
        ("bare.find(exp.Anonymous) is None", "True"),
    ),
    *_of(
        "mview/ivm/rewrites/whole_windows.py",
        ('for name in ("order", "spec", "alias")', 'for name in ("alias",)'),
        ('group.args.get("all") or names & aliases)', 'group.args.get("all"))'),
        ("return plain and constant and", "return plain and"),
    ),
    *_of(
        "mview/ivm/tracing/indexes.py",
        ('(plain or node.kind not in ("right", "full"))', "True"),
        ("if position is None or node.sets is not None:", "if position is None:"),
        ("isinstance(value, exp.NullSafeEQ)))", "False))"),
        ("if not node.key or not is_faithful(value) or", "if not node.key or"),
    ),
    *_of(
        "mview/ivm/rewrites/parts.py",
        (
            "in columns), part.key\n",
            "in columns), ()\n",
        ),
        ('more = ("group", "having", "limit", "offset",', 'more = ("having", "limit", "offset",'),
        ("keys += [ascending(column(name)) for name in part.key]", "pass"),
        ("return names[int(value.name) - 1]", "return names[0]"),
        ('if hidden and tree.args.get("distinct"):', "if False:"),
    ),
    *_of(
        "mview/ivm/compile.py",
        ("if maintained.extremes:\n", "if False:\n"),
        (
            "return not more or (all(more) and _holds_a_primary_key(aggregate, schemas))",
            "return not more or all(more)",
        ),
        ('if plan.definition.policy != "incremental_only":', "if True:"),
        ("and any(note.always for note in notes.values())", ""),
        ("    if definition.key:\n        return definition.key\n", ""),
    ),
    *_of(
        "mview/ivm/plan.py",
        (
            "return self.declared if self.top is None and self.declared else self.definition",
            "return self.declared or self.definition",
        ),
        ("UNION ALL SELECT -1 AS", "UNION ALL SELECT 1 AS"),
        ("if c.name in self.used[table]", ""),
    ),
    *_of(
        "mview/ivm/explain.py",
        ("rows of {source.step + 1}", "rows of {source.step}"),
        ("fewer than {least} of", "fewer than {least - 1} of"),
    ),
    *_of(
        "mview/ivm/reads.py",
        ("if key and set(key) <= set(step.columns):", "if False:"),
        ("sizes.append(_BAND_SHARE * most)", "sizes.append(most)"),
        ("sum(min(more, rows[table]) for", "sum(more for"),
    ),
    *_of(
        "mview/ivm/facts/result_types.py",
        ('return "interval" if all(sides) else None', 'return "interval" if any(sides) else None'),
        (
            "return others.pop() if len(others) == 1 else None",
            "return next(filter(None, others), None)",
        ),
    ),
]

_STORE = [
    *_of(
        "mview/store/fold.py",
        ("np.flatnonzero(positive & (epochs == last[group]))", "np.flatnonzero(positive)"),
        ("kept = without(base_rows, last.keys, key)", "kept = base_rows"),
        ("if len(winners) and np.bincount(group[winners]).max() > 1:", "if False:"),
    ),
    *_of(
        "mview/store/mirror.py",
        ("if head.transactions.get(_APPEND) == epoch or not delta", "if not delta"),
        (
            "if self.base.head.transactions.get(_REGISTER) == epoch or not files:\n"
            "            return self.base.head.version\n        added = []",
            "if not files:\n            return self.base.head.version\n        added = []",
        ),
        ("first = min([epoch, *(_first_epoch(file.path) for file in merged)])", "first = epoch"),
        (
            "kept = without(rows, keys.select(list(self.schema.key)), self.schema.key)",
            "kept = rows",
        ),
        ("if _last_epoch(file) <= upto]", "if _last_epoch(file) <= upto + 1]"),
        ('if current.phase == "loading" else []', 'if current.phase == "loaded" else []'),
        ("for s in (*staging, self._reread)", "for s in staging"),
        ("            upto = epoch\n", "            upto = epoch + 1\n"),
        ("file.stat().st_size,\n", "staged.size,\n"),
        ('f"{zlib.crc32(file.read_bytes()):08x}"', "staged.digest"),
        ("if size > most and upto > state.folded:", "if size > most:"),
        ("if not is_below(name):", "if False:"),
        ("log.revert(version, note, (app, _NO_EPOCH))", "log.revert(version, note, (app, 1))"),
        ("                if size > most:\n", "                if False:\n"),
        ("return rows.filter(pc.greater(rows[EPOCH], state.folded))", "return rows"),
        ("min(oldest.base_version, current.base_version),", "current.base_version,"),
    ),
    *_of(
        "mview/store/history.py",
        ("before.epoch >= manifest.epoch:", "before.epoch > manifest.epoch + 1:"),
        (
            "if not put_if_absent(file, checked(manifest.to_json()), check=self._fence.check):",
            "if put_if_absent(file, checked(manifest.to_json())) is None:",
        ),
        (
            "if not put_if_absent(file, checked(body), check=self._fence.check):",
            "if put_if_absent(file, checked(body)) is None:",
        ),
        (
            "if not put_if_absent(file, checked(body), check=self._fence.check):",
            "if not put_if_absent(file, checked(body)):",
        ),
        ("check(before, manifest)\n        settle()\n", "check(before, manifest)\n"),
        ("        settle()\n        file = self._file", "        file = self._file"),
        ("self._fence.check()\n        for epoch in epochs:", "for epoch in epochs:"),
        ("if number <= epoch:", "if number < epoch:"),
        ("return self.read(epochs[number - 1])", "return self.read(epochs[max(number - 2, 0)])"),
        ("        check(before, manifest)\n", ""),
        ("for older in reversed(self.epochs()):", "for older in self.epochs():"),
    ),
    *_of(
        "mview/store/kinds.py",
        ("(has[0] & has[1])[codes]", "(has[0] | has[1])[codes]"),
        ("comes = rows[WEIGHT].to_numpy() > 0", "comes = rows[WEIGHT].to_numpy() < 0"),
    ),
    *_of(
        "mview/store/requests/paused.py",
        ("    if file.exists():\n        return False\n", ""),
        ("            if file.exists():\n                raise\n", ""),
        (
            "    except FileNotFoundError:\n        return False\n    return True",
            "    finally:\n        pass\n    return True",
        ),
    ),
    *_of(
        "mview/store/requests/applies.py",
        ("replace(view, functions=())", "view"),
        ("        if not answer.exists():\n            return None\n", ""),
    ),
    *_of(
        "mview/store/requests/log.py",
        (
            'return sorted(self._folder.glob("*.json"))',
            'return sorted(self._folder.glob("*.json"))[::-1]',
        ),
    ),
    *_of(
        "mview/store/lease.py",
        ("owner.expires_ms < self._clock.now() or", "self._clock.now() < owner.expires_ms or"),
        ("_started(self.pid) != self.started", "_started(self.pid) is None"),
        ("replace(self._owner, expires_ms=ended)", "self._owner"),
        ("ended = 0 if self._fenced or not self._takes_over else _LONG_AGO", "ended = 0"),
        ("lost or (before is not None and before.expires_ms > 0)", "lost"),
        ("lost = newest < self._above", "lost = False"),
        ("token = max(newest, self._above) + 1", "token = newest + 1"),
        (
            "if newest > self._token:\n            owner",
            "if newest < self._token:\n            owner",
        ),
        ("now + self._ttl_ms,\n        )", "now + 10 * self._ttl_ms,\n        )"),
        ("expires_ms=self._clock.now() + self._ttl_ms)", "expires_ms=owner.expires_ms)"),
        ("            lease.check()\n            refused = error", "            refused = error"),
        ("if token <= newest - _KEPT:", "if token <= newest:"),
        ('return None if fields[0] == "Z" else fields[19]', "return fields[19]"),
    ),
    *_of(
        "mview/store/invariants.py",
        ("if table.folded > last:", "if table.folded > last + 1:"),
        ("old and new.token < old.token", "False"),
        ("after is None or after < position", "after is None"),
        ("        if rows < 0:", "        if rows < -1:"),
        ("old.epoch + 1 if old else FIRST_EPOCH", "new.epoch if old else FIRST_EPOCH"),
        (
            "old and (new.generation, new.batch) < (old.generation, old.batch)",
            "old and new.generation < old.generation",
        ),
        ("or set(new.offsets) - set(old.offsets)", ""),
        ('("base_version", "changelog_version", "folded")', '("base_version", "folded")'),
        ('now.phase == "loading" and not set(then.released) <= set(now.released)', "False"),
        ("old and new.pinned_ms < old.pinned_ms", "False"),
        ("isinstance(after, int) and after < before", "False"),
    ),
    *_of(
        "mview/store/layout.py",
        (' or name.startswith(".")', ""),
        ('f"~{byte:02x}"', '"~"'),
        ("name == name.lower() and len", "len"),
        ("if older < token]", "if older <= token]"),
    ),
    *_of(
        "mview/store/identity.py",
        ("        if why := refusal(root):\n            raise why\n", ""),
        ("if store_id(root) or not (others", "if not (others"),
        ("and not home.samefile(root)", ""),
        ('if mark.get("home") != str(root.resolve()) and copied_from(root) is None:', "if False:"),
        ("    root.chmod(_PRIVATE)\n", ""),
    ),
    *_of(
        "mview/store/failure.py",
        ("last.epoch >= epoch else None", "last.epoch > epoch else None"),
        ("key=lambda failure: failure.at_ms", "key=lambda failure: -failure.at_ms"),
        ("mask(v) if isinstance(v, str) else v", "v"),
        ("if older.name <= file.name:", "if older.name == file.name:"),
    ),
    *_of(
        "mview/store/frames.py",
        (
            "tail.where(F.col(EPOCH) > state.folded)",
            "tail.where(F.col(EPOCH) > state.folded + 1)",
            "tests/store/test_frames.py",
        ),
        (
            "newest = [*same, F.col(EPOCH) == F.col(_LAST)]",
            "newest = same",
            "tests/store/test_frames.py",
        ),
    ),
]

_AROUND = [
    *_of(
        "mview/delta/log.py",
        ("if self._runner > self._fence.token:", "if False:"),
        ("if self._runner < self._fence.token:", "if False:"),
        ("check=self._fence.check, at_once=False", "at_once=False"),
        (
            "version <= oldest and path not in needed and not spare(path)",
            "path not in needed and not spare(path)",
        ),
        ("needed = self._pending.union(", "needed = set().union("),
        (
            "fenced = not self._fence.takes_over or self._runner == self._fence.token",
            "fenced = True",
        ),
        (
            "if then.files.get(path) != file]\n            adds",
            "if path not in then.files]\n            adds",
        ),
        ("said.get(_DIGEST, digest := _digest_of(lines[1:])) != digest", "False"),
        ('get("dataChange")', 'get("nothing")'),
    ),
    *_of(
        "mview/rows/equality.py",
        ("same &= _same_bits(", "same |= _same_bits("),
        ("    bits[np.isnan(bits)] = np.nan\n", ""),
        ("bits = bits.copy() if signs else bits + bits.dtype.type(0)", "bits = bits.copy()"),
        ("bits = bits.copy() if signs else", "bits ="),
        ("(lengths == sizes(right))", "(lengths >= sizes(right))"),
    ),
    *_of(
        "mview/delta/rewrite.py",
        ("values[place] > bounds.high", "values[place] >= bounds.high"),
        ("place = bisect_left(values, bounds.low)", "place = bisect_right(values, bounds.low)"),
        ("bounds is not None and not (null and bounds.nulls)", "bounds is not None"),
        ("            left = left[done:]\n", "            left = left[done + 1 :]\n"),
        ("free[instead[instead >= 0]] = False", "pass"),
        ("        source[part.deleted] = -1\n", "        source[part.gone] = -1\n"),
    ),
    *_of(
        "mview/delta/parquet.py",
        ("page_checksum_verification=True", "page_checksum_verification=False"),
        ("            _check_counts(parquet.metadata, table.num_rows)\n", ""),
        (
            "if statistics.null_count == group.num_rows:\n            continue\n",
            "if False:\n            continue\n",
        ),
    ),
    *_of(
        "mview/files/jsonfile.py",
        ("if hashlib.sha256(content).hexdigest().encode() != checksum:", "if not checksum:"),
        ("except (ValueError, UserError) as error:", "except UserError as error:"),
        ("except (ValueError, UserError) as error:", "except ValueError as error:"),
        ("content = content.rstrip()", "content = content[:-1]"),
    ),
    *_of(
        "mview/files/records.py",
        ("for name in readers.keys() ^ data.keys():", "for name in data.keys() - readers.keys():"),
        ("for name in readers.keys() ^ data.keys():", "for name in readers.keys() - data.keys():"),
        ("lambda data: type(data) in taken,", "lambda data: isinstance(data, tuple(taken)),"),
        ("lambda data: data in inner,", "lambda data: True,"),
        ("_at(name, item, value) for", "value for"),
    ),
    *_of(
        "mview/files/marks.py",
        ("if not all(isinstance(text, str) for text in mark.values()):", "if False:"),
        ("if name != mark and not is_aside(name))", "if name != mark)"),
    ),
    *_of(
        "mview/epoch/retention.py",
        ("    if age > history_ms:\n", "    if False:\n"),
        ("if age <= _DENSE_MS:", "if False:"),
        ("if slot in seen:", "if slot not in seen:"),
        ("for epoch in epochs[1:]:", "for epoch in epochs:"),
        ("kept.published_ms <= before]", "kept.published_ms >= before]"),
    ),
    *_of(
        "mview/connector/messages.py",
        ("event.source_ms > latest:", "event.source_ms >= latest:"),
        ("if event.source_ms is not None and event.source_ms > latest:", "if False:"),
    ),
    *_of(
        "mview/memory.py",
        ("fits = sum(self._held.values()) + nbytes <= self.limit", "fits = True"),
        (
            "for name, size in self._held.items() if name != holder)",
            "for name, size in self._held.items())",
        ),
        ("self._held.pop(holder, None)\n            fits", "fits"),
    ),
    *_of(
        "mview/delta/recent.py",
        ("while self.used > self.limit:", "while False:"),
        (
            "self.used -= self._order.pop((owner, path), ({}, 0))[1]",
            "self._order.pop((owner, path), ({}, 0))",
        ),
    ),
    *_of(
        "mview/epoch/halts.py",
        ("    if isinstance(error, _OF_ALL):\n", "    if False:\n"),
        ("return may_be_disk and not _takes_files(store.root)", "return may_be_disk"),
        ("built = state.built_epoch if state.sink else NEVER", "built = state.built_epoch"),
    ),
    *_of(
        "mview/plan/checks/allowed.py",
        ("if name not in ARGUMENTS and name not in declared", "if False and name not in declared"),
        ("if not plain and not made:", "if False:"),
        (
            "if isinstance(node, exp.Table) and not isinstance(node.this, exp.Identifier):",
            "if False:",
        ),
        (
            "        if name in REFUSED:\n            raise _refused(text, name, span(node))",
            "        if False:\n            raise _refused(text, name, span(node))",
        ),
    ),
    *_of(
        "mview/ingest/spec.py",
        (
            "if chunk.number >= handed.get(table.name, 0)",
            "if chunk.number > handed.get(table.name, 0)",
        ),
        ('if _digest_of(content) != reference.rpartition("#")[2]:', "if False:"),
        ("SystemClock().now() + AHEAD_MS)", "SystemClock().now() + 6 * AHEAD_MS)"),
        ("if config.changes[connection].is_own_log:", "if False:"),
    ),
    *_of(
        "mview/ingest/sources.py",
        ("handed = _handed(start)", "handed = {}"),
        (
            "if chunk.number < until.get(table.name, 0)",
            "if chunk.number <= until.get(table.name, 0)",
        ),
    ),
    *_of(
        "mview/ingest/changelogs.py",
        ('watermark = max(watermark, start["watermark"])', "pass"),
        ("if len(known) == len(at) else -1", "if known else -1"),
        ("if table.plan is not None}", "}"),
        (".after(known))", ")"),
        (
            "return min(slow) if slow and len(progress) > 1 else None",
            "return max(slow) if slow and len(progress) > 1 else None",
        ),
    ),
    *_of(
        "mview/ingest/chunks.py",
        ("SourceMs(max(after, search + int(seconds * 1000)))", "after"),
        ("        target.unlink(missing_ok=True)\n        raise", "        raise"),
        ("if there is None or _form(there) != _form(column):", "if there is None:"),
    ),
]

_FOLLOW = [
    *_of(
        "mview/follow/following.py",
        (
            "mark.epoch == cursor.epoch and mark.is_by(cursor.step)",
            "mark.epoch == cursor.epoch",
        ),
        ("cursor.epoch is not None and mark.epoch < cursor.epoch", "cursor.epoch is not None"),
        ("is_behind and any(map(mark.is_by, self._cursors.noted()))", "is_behind"),
        (
            "if state is State.PREPARED and token is not None and not is_lost:",
            "if state is State.PREPARED and not is_lost:",
        ),
        ("            if is_lost:\n", "            if False:\n"),
        ("if state in (State.PREPARED, State.INITIALIZED):", "if False:"),
        ("if mark is None or mark.epoch >= content.epoch:", "if mark is None:"),
        ("self._is_settled = False\n        done = self._step()", "done = self._step()"),
        ("tried=max(tried, self.cursor.tried)", "tried=self.cursor.tried"),
        ("if epoch is None or epoch < begins:", "if epoch is None:"),
        ("            upto += 1\n", "            pass\n"),
        ("            check_owner(self._target, mark)\n", "            pass\n"),
        (
            "intent=replace(intent, token=token))\n        self._cursors.write(self.cursor)",
            "intent=replace(intent, token=token))",
        ),
        ("if rows[name].null_count:", "if False:"),
        (
            "if largest is not None and changes.rows.num_rows > largest:",
            "if False and changes.rows.num_rows > largest:",
        ),
    ),
    *_of(
        "mview/follow/net.py",
        ("np.lexsort((is_new, rows[EPOCH].to_numpy(), codes))", "np.lexsort((is_new, codes))"),
        ("    same &= was & is_there\n", "    pass\n"),
        ("was, is_there = was & ~same, is_there & ~same", "pass"),
    ),
    *_of(
        "mview/follow/resync.py",
        ("if _has_twins(before, key):", "if False:"),
        ("        if size > most:", "        if False:"),
    ),
    *_of(
        "mview/follow/source.py",
        ("if view is None or view.stale or table is None:", "if view is None or table is None:"),
        ("if after < (begins := self._begins(view, table)):", "if (begins := 0):"),
        (
            "return max(view.built_epoch, self._opened(table).trimmed(table))",
            "return self._opened(table).trimmed(table)",
        ),
        ("if self._state[2] == table:", "if True:"),
        ("rows.filter(pa.array(epochs <= upto))", "rows"),
        ("fit = max(1, int(np.searchsorted", "fit = max(2, int(np.searchsorted"),
    ),
    *_of(
        "mview/follow/cursor.py",
        ("if not made or numbers[-1] != number:", "if not made:"),
        ("for number in reversed(numbers):", "for number in numbers:"),
        ("for old in numbers[:-_KEPT]:", "for old in numbers[:-1]:"),
    ),
    *_of(
        "mview/follow/followers.py",
        ("0 if problem is None else self._clock.now() - problem.since_ms", "0"),
        ("elif now - self._maintained.at_ms > _MAINTAIN_EVERY_MS:", "elif False:"),
        ("if (intent := cursor.intent) is not None and intent.way", "if False and intent.way"),
        ("if age_ms <= settings.spool_age and size", "if size"),
        ("self._bounds if opened is None else opened[1].settings", "opened[1].settings"),
        ("passes = isinstance(known, RetryableError) and before is None", "passes = False"),
    ),
]

MUTANTS = [*_MERGE, *_IVM, *_STORE, *_AROUND, *_FOLLOW]
