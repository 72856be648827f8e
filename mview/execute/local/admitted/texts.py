"""The admitted functions of strings."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from mview.execute.local.admitted.entries import FLAGS, SPARK_DECIDES, Admitted, binary, unary
from mview.execute.local.admitted.patterns import (
    counted_by,
    extracted,
    matched,
    replaced,
    searched,
    unbroken,
)
from mview.execute.local.admitted.signatures import (
    all_of,
    any_pattern,
    as_texts,
    counted,
    cut,
    cut_by_sign,
    first_parts,
    one_of,
    padded,
    parted,
    pattern,
    separated,
    sliced,
    sliced_by,
    small_letters,
)
from mview.execute.local.admitted.spark_types import BINARY, BOOLEAN, INT, INTEGERS, STRING

_TEXT = as_texts(one_of((STRING,)))
_TEXTS = as_texts(all_of(STRING, STRING), 1_000)
_LENGTH = as_texts(one_of((STRING,), INT))
_FIRST = as_texts(all_of(STRING, STRING))
_TWO = as_texts(all_of(STRING, BOOLEAN))
_ASCII = r"[\x00-\x7F]*"
#: Code points whose upper or lower case is another one in Spark, or hangs on their neighbours, or
#: was not compared.
_NO_UPPER = (
    r"\x{{df}}\x{{149}}\x{{19b}}\x{{1f0}}\x{{264}}\x{{390}}\x{{3b0}}\x{{587}}"
    r"\x{{1c8a}}\x{{1e96}}-\x{{1e9a}}\x{{1f50}}\x{{1f52}}\x{{1f54}}\x{{1f56}}"
    r"\x{{1f80}}-\x{{1fff}}\x{{a7c0}}-\x{{a7ff}}\x{{fb00}}-\x{{fb17}}"
    r"\x{{10000}}-\x{{10ffff}}"
)
_NO_LOWER = r"\x{{130}}\x{{3a3}}\x{{1c89}}\x{{a7c0}}-\x{{a7ff}}\x{{10000}}-\x{{10ffff}}"


def _where(condition: str, text: str, kind: str = "VARCHAR") -> str:
    other = f"WHEN {{0}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS {kind})"
    return f"CASE WHEN {condition} THEN {text} {other} END"


def _cased(name: str, node: type[exp.Expr], other: str) -> Admitted:
    text = _where(f"NOT regexp_matches({{0}}, '[{other}]')", f"{name}({{0}})")
    return replace(unary(name, node, f"{name}({{0}})", _TEXT, text), defers=True)


def _trim(name: str, position: str) -> Admitted:
    rule = unary(name, exp.Trim, f"{name}({{0}})", _TEXT, f"{name}({{0}}, ' ')")
    return replace(rule, form={"position": position, "expression": ""})


def _trim_of(name: str, position: str) -> Admitted:
    """The same of any characters, which are a set in both engines."""
    text = f"trim({position.upper()} {{1}} FROM {{0}})"
    rule = binary(f"{name}_of", exp.Trim, text, _FIRST, f"{name}({{0}}, {{1}})")
    return replace(rule, form={"position": position})


def _btrim(name: str, text: str, duckdb: str, count: int) -> Admitted:
    rule = Admitted(name, exp.Anonymous, text, duckdb, _FIRST, ("expressions",))
    return replace(rule, arity=(count,), form={"this": "btrim"})


def _pad(name: str, left: str) -> Admitted:
    return Admitted(
        name,
        exp.Pad,
        f"{name}({{all}})",
        f"{name}({{0}}, {{1}}, {{2}})",
        as_texts(padded),
        ("this", "expression", "fill_pattern"),
        FLAGS,
        arity=(3,),
        form={"is_left": left},
    )


_INITIALS = _where(
    f"regexp_full_match({{0}}, '{_ASCII}', 's')",
    "array_to_string(list_transform(string_split(lower({0}), ' '), "
    "lambda w: upper(w[1]) || w[2:]), ' ')",
)

_SEPARATED = "CASE WHEN {0} IS NOT NULL THEN coalesce(array_to_string({1}, {0}), '') END"


#: Characters that no text has more of, which DuckDB takes as a length.
_LONGEST = "2147483647"
_AT_LEAST_NONE = "CASE WHEN {1} IS NOT NULL THEN %s({0}, greatest({1}, 0)) END"


def _part_of(length: str) -> str:
    """DuckDB text: `substring` by any numbers; a place before the first counts, as in Spark."""
    begin = "CASE WHEN {1} < 0 THEN length({0}) + {1} WHEN {1} > 0 THEN {1} - 1 ELSE 0 END"
    at = f"CAST({begin} AS BIGINT)"
    here = f"greatest({at}, 0)"
    end = f"least({at} + {length}, {_LONGEST})"
    part = f"substring({{0}}, {here} + 1, greatest({end} - {here}, 0))"
    return f"CASE WHEN {{1}} IS NOT NULL AND {length} IS NOT NULL THEN {part} END"


_FIRST_PARTS = (
    "CASE WHEN {2} > 0 THEN array_to_string(string_split({0}, {1})[1:{2}], {1}) "
    "ELSE array_to_string(string_split({0}, {1})[{2}:], {1}) END"
)

TEXTS: tuple[Admitted, ...] = (
    replace(
        binary("concat", exp.Concat, "concat({all})", _TEXTS, "{joined}"),
        parts=("expressions",),
        arity=(2, 3),
    ),
    binary("pipes", exp.DPipe, "{0} || {1}", _TEXTS),
    replace(
        binary("concat_ws", exp.ConcatWs, "concat_ws({all})", _TEXTS),
        parts=("expressions",),
        fixed={**FLAGS, "coalesce": (True, False), "flatten": (True, False)},
        arity=(3,),
    ),
    replace(
        binary("concat_ws_list", exp.ConcatWs, "concat_ws({0}, {1})", separated, _SEPARATED),
        parts=("expressions",),
        fixed={**FLAGS, "coalesce": (True, False), "flatten": (True, False)},
    ),
    unary("length", exp.Length, "length({0})", _LENGTH),
    replace(
        unary("octet_length", exp.Anonymous, "octet_length({0})", _LENGTH),
        duckdb="strlen({0})",
        parts=("expressions",),
        form={"this": "octet_length"},
    ),
    unary("bit_length", exp.BitLength, "bit_length({0})", _LENGTH, "(8 * strlen({0}))"),
    replace(
        binary(
            "find_in_set", exp.Anonymous, "find_in_set({0}, {1})", as_texts(all_of(STRING, INT))
        ),
        duckdb="CASE WHEN {0} IS NOT NULL AND {1} IS NOT NULL "
        "THEN coalesce(list_position(string_split({1}, ','), {0}), 0) END",
        parts=("expressions",),
        form={"this": "find_in_set"},
    ),
    unary("ascii", exp.Ascii, "ascii({0})", _LENGTH),
    _cased("upper", exp.Upper, _NO_UPPER),
    _cased("lower", exp.Lower, _NO_LOWER),
    _trim("ltrim", "leading"),
    _trim("rtrim", "trailing"),
    _trim("trim", ""),
    *(
        _trim_of(*sides)
        for sides in (("ltrim", "leading"), ("rtrim", "trailing"), ("trim", "both"))
    ),
    replace(_trim_of("trim", ""), name="trim_from", spark="trim({1} FROM {0})"),
    _btrim("btrim", "btrim({0})", "trim({0}, ' ')", 1),
    _btrim("btrim_of", "btrim({0}, {1})", "trim({0}, {1})", 2),
    replace(
        binary("substring", exp.Substring, "substring({all})", as_texts(sliced)),
        duckdb="substring({all})",
        parts=("this", "start", "length"),
        arity=(2, 3),
    ),
    replace(
        binary("substring_of", exp.Substring, "substring({0}, {1})", as_texts(sliced_by)),
        duckdb=_part_of(_LONGEST),
        parts=("this", "start", "length"),
    ),
    replace(
        binary("substring_of_many", exp.Substring, "substring({0}, {1}, {2})", as_texts(sliced_by)),
        duckdb=_part_of("{2}"),
        parts=("this", "start", "length"),
        arity=(3,),
    ),
    binary("left", exp.Left, "left({0}, {1})", as_texts(counted)),
    binary("right", exp.Right, "right({0}, {1})", as_texts(counted)),
    binary("left_of", exp.Left, "left({0}, {1})", as_texts(sliced_by), _AT_LEAST_NONE % "left"),
    binary(
        "right_of",
        exp.Right,
        "right({0}, {1})",
        as_texts(sliced_by),
        _AT_LEAST_NONE % "right",
    ),
    replace(
        binary(
            "substring_index", exp.SubstringIndex, "substring_index({0}, {1}, {2})", first_parts
        ),
        duckdb=_FIRST_PARTS,
        parts=("this", "delimiter", "count"),
        arity=(3,),
    ),
    replace(
        binary("repeat", exp.Repeat, "repeat({0}, {1})", as_texts(counted)), parts=("this", "times")
    ),
    _pad("lpad", "true"),
    _pad("rpad", ""),
    replace(
        unary(
            "reverse",
            exp.Reverse,
            "reverse({0})",
            _TEXT,
            _where(f"regexp_full_match({{0}}, '{_ASCII}', 's')", "reverse({0})"),
        ),
        defers=True,
    ),
    replace(
        binary("replace", exp.Replace, "replace({0}, {1}, {2})", _FIRST),
        parts=("this", "expression", "replacement"),
        arity=(3,),
    ),
    replace(
        binary("translate", exp.Translate, "translate({0}, {1}, {2})", _FIRST),
        parts=("this", "from_", "to"),
        arity=(3,),
    ),
    replace(
        binary("instr", exp.StrPosition, "instr({0}, {1})", as_texts(all_of(STRING, INT))),
        parts=("this", "substr"),
    ),
    binary("contains", exp.Contains, "contains({0}, {1})", _TWO),
    binary("startswith", exp.StartsWith, "startswith({0}, {1})", _TWO, "starts_with({0}, {1})"),
    binary("endswith", exp.EndsWith, "endswith({0}, {1})", _TWO, "ends_with({0}, {1})"),
    replace(
        binary("split_part", exp.SplitPart, "split_part({0}, {1}, {2})", as_texts(parted)),
        parts=("this", "delimiter", "part_index"),
        arity=(3,),
    ),
    binary("like", exp.Like, "{0} LIKE {1}", as_texts(pattern)),
    replace(
        binary("like_of", exp.Like, "{0} LIKE {1}", any_pattern),
        # A backslash escapes in Spark only.
        duckdb="CASE WHEN NOT contains({1}, '\\') THEN {0} LIKE {1} WHEN {0} IS NOT NULL "
        f"AND {{1}} IS NOT NULL THEN CAST({SPARK_DECIDES} AS BOOLEAN) END",
        defers=True,
    ),
    replace(
        binary("ilike", exp.ILike, "{0} ILIKE {1}", as_texts(small_letters)),
        duckdb=_where(
            f"NOT regexp_matches({{0}}, '[{_NO_LOWER}]')", "lower({0}) LIKE lower({1})", "BOOLEAN"
        ),
        defers=True,
    ),
    replace(
        binary("rlike", exp.RegexpLike, "{0} RLIKE {1}", as_texts(matched)),
        duckdb=unbroken("regexp_matches({0}, {1})", "BOOLEAN"),
        defers=True,
    ),
    replace(
        binary(
            "regexp_replace", exp.RegexpReplace, "regexp_replace({0}, {1}, {2})", as_texts(replaced)
        ),
        duckdb=unbroken("regexp_replace({0}, {1}, {2}, 'g')"),
        parts=("this", "expression", "replacement"),
        arity=(3,),
        defers=True,
    ),
    replace(
        binary("regexp_extract", exp.RegexpExtract, "regexp_extract({all})", as_texts(extracted)),
        duckdb=unbroken("regexp_extract({0}, {1}, {2})"),
        parts=("this", "expression", "group"),
        fixed={**FLAGS, "null_if_pos_overflow": (True,)},
        arity=(3,),
        defers=True,
    ),
    replace(
        binary("regexp_substr", exp.RegexpSubstr, "regexp_substr({0}, {1})", as_texts(searched)),
        duckdb=unbroken("nullif(regexp_extract({0}, {1}), '')"),
        defers=True,
    ),
    replace(
        binary("regexp_count", exp.RegexpCount, "regexp_count({0}, {1})", as_texts(counted_by)),
        duckdb=unbroken("len(regexp_extract_all({0}, {1}))", "INTEGER"),
        defers=True,
    ),
    binary("split", exp.RegexpSplit, "split({0}, {1})", as_texts(cut), "string_split({0}, {1})"),
    replace(
        binary("split_by_sign", exp.RegexpSplit, "split({0}, {1})", as_texts(cut_by_sign)),
        duckdb="string_split({0}, right({1}, 1))",
    ),
    replace(
        unary("initcap", exp.Initcap, "initcap({0})", _TEXT, _INITIALS),
        fixed={"expression": ("' '",)},
        defers=True,
    ),
    unary("hex", exp.Hex, "hex({0})", one_of((STRING, BINARY), STRING)),
    unary("hex_of_integers", exp.Hex, "hex({0})", one_of(INTEGERS, STRING), "hex({0}::BIGINT)"),
    unary("md5", exp.MD5, "md5({0})", one_of((STRING, BINARY), STRING)),
    unary("sha1", exp.SHA, "sha1({0})", one_of((STRING, BINARY), STRING)),
    replace(
        unary("sha2", exp.SHA2, "sha2({0}, 256)", one_of((STRING, BINARY), STRING), "sha256({0})"),
        fixed={**FLAGS, "length": ("256",)},
    ),
)
