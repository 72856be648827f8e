"""Whole queries that must give the same on Spark and in process, and their two tables."""

from __future__ import annotations

import datetime as dt
import itertools
from decimal import Decimal

import pyarrow as pa

from mview.schema import parse_type

DECIMAL = parse_type("decimal(10,2)")
D = Decimal
NAN = float("nan")

L = pa.table(
    {
        "id": pa.array([1, 2, 3, 4, 5, 6], pa.int64()),
        "k": pa.array([1, 1, None, 2, 3, 9], pa.int32()),
        "s": ["a", None, "b", "ä", "a", "Z"],
        "n": pa.array([D("1.10"), D("2.20"), None, D("-1.00"), D("0.00"), D("5.55")], DECIMAL),
        "d": pa.array([dt.date(2024, 1, day) for day in range(1, 7)]),
        "f": [0.0, -0.0, NAN, NAN, None, 1.5],
    }
)
R = pa.table(
    {
        "id": pa.array([10, 11, 12, 13], pa.int64()),
        "k": pa.array([1, None, 2, 2], pa.int64()),
        "t": ["x", "y", None, "a"],
        "v": pa.array([5, 6, None, 8], pa.int32()),
        "f": [-0.0, NAN, 2.5, None],
    }
)
JOINS = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"]
CONDITIONS = ["l.k = r.k", "l.k <=> r.k", "l.k = r.k AND r.v > 5", "l.f = r.f", "l.s = r.t"]
#: As a view compares what `max_by` and `min_by` take: no two values are equal in it.
BY = "{f}(s, CASE WHEN NOT (k) IS NULL THEN STRUCT(k AS k, NOT (s) IS NULL AS col2, s AS s) END)"
#: As models of dbt are written: all columns of a table first, then some of them by other values.
_STAGED = "WITH a AS (SELECT * FROM l), b AS (SELECT id, k, upper(s) AS s, n * 2 AS n FROM a)"
QUERIES = [
    f"{_STAGED} SELECT s, sum(n) AS n FROM b GROUP BY s",
    f"{_STAGED}, c AS (SELECT *, k + 1 AS j FROM b WHERE n > 0) SELECT j, lower(s) AS s FROM c",
    f"{_STAGED}, c AS (SELECT k AS id, max(v) AS m FROM r GROUP BY k) "
    "SELECT id, lower(s) AS s, m AS n FROM b LEFT JOIN c USING (id)",
    "SELECT a, max(s) AS s FROM (SELECT id AS a, s FROM l) FULL JOIN (SELECT k AS a, v FROM r) "
    "USING (a) GROUP BY a",
    "WITH a AS (SELECT * FROM l UNION ALL SELECT * FROM l) SELECT k, sum(n) AS n FROM a GROUP BY k",
    "WITH a AS (SELECT l.*, r.v FROM l JOIN r ON l.k = r.k), b AS (SELECT *, v + 1 AS w FROM a) "
    "SELECT s, max(w) AS v FROM b GROUP BY s",
    "SELECT id, round(n / sum(n) OVER (PARTITION BY k) * 100, 2) AS p FROM l WHERE n > 0",
    "SELECT id, n / lag(n) OVER (ORDER BY id) - 1 AS growth FROM l WHERE n > 0",
    "SELECT id, lower(s) AS s, s AS raw FROM (SELECT * FROM l)",
    "SELECT id, trim(s) AS s FROM (SELECT l.* EXCEPT (f), r.t FROM l LEFT JOIN r ON l.k = r.k)",
    "SELECT id, n - lag(n) OVER w AS x, count(*) OVER w AS c FROM l "
    "WINDOW w AS (PARTITION BY k ORDER BY id)",
    "SELECT l.id, q.w FROM l JOIN (VALUES (1, 'x'), (2, NULL)) AS q(k, w) ON l.k = q.k",
    "SELECT id, col1 FROM l CROSS JOIN (VALUES (1), (2.5))",
    "SELECT id FROM l WHERE (k, s) IN (SELECT k, t FROM r)",
    # A table that is called, with its columns, as what IN makes of the query.
    "SELECT c0, c1 FROM (SELECT k AS c0, id AS c1 FROM l) AS rows "
    "WHERE (c0, c1) IN (SELECT k, id - 9 FROM r)",
    "SELECT id FROM l WHERE k IS NULL OR (k, id) IN (SELECT v, k FROM r)",
    "SELECT k, max(struct(n, s)).s AS x, min(struct(s, n)).n AS y FROM l GROUP BY k",
    "SELECT max(struct(n, s)).s AS x, min(named_struct('a', s)).a AS y FROM l WHERE id > 100",
    "SELECT id FROM l WHERE id = '1' OR s LIKE s || '%'",
    "SELECT l.id, r.id AS rid FROM l JOIN r ON l.s LIKE r.t || '%'",
    "SELECT id, x FROM l LATERAL VIEW explode(sequence(d, DATE '2024-01-08', INTERVAL 2 DAYS)) "
    "q AS x WHERE id < 6",
    "SELECT id, x FROM l LATERAL VIEW explode(sequence(d, DATE '2024-05-31', INTERVAL 1 MONTH)) "
    "q AS x",
    "SELECT id, explode(sequence(1, k)) AS x FROM l",
    "SELECT k, percentile_cont(0.3) WITHIN GROUP (ORDER BY id) AS x FROM l GROUP BY k",
    "SELECT k, decode(k, 1, 'a', NULL, 'b', 'c') AS x FROM l",
    *(
        f"SELECT l.id AS a{'' if 'SEMI' in join or 'ANTI' in join else ', r.id AS b'} "
        f"FROM l {join} r ON {condition}"
        for join, condition in itertools.product(JOINS, CONDITIONS)
    ),
    # Sides of other types, and columns of NULL alone.
    "SELECT k, n FROM l UNION ALL SELECT k, v FROM r",
    "SELECT id, NULL AS x, s FROM l UNION SELECT k, 0, NULL FROM r",
    "SELECT n FROM l EXCEPT SELECT v FROM r UNION ALL SELECT 1.5D",
    "SELECT d FROM l INTERSECT ALL SELECT TIMESTAMP '2024-01-02 00:00:00'",
    "SELECT id FROM l WHERE k IN (SELECT id / 5 FROM r) OR n IN (SELECT v - 6 FROM r)",
    "SELECT id FROM l WHERE d IN (SELECT TIMESTAMP_NTZ '2024-01-02 00:00:00' FROM r)",
    "SELECT id, lag(n, 1, 0) OVER (ORDER BY id) AS p, lead(id, 2, -1) OVER (ORDER BY d) q FROM l",
    "SELECT k, sum(n) / count(*) AS a, sum(n) / sum(id) AS b, n * 100 / sum(n) OVER () AS c FROM l "
    "GROUP BY k, n",
    # Aggregates of the rows that belong to one of the query.
    "SELECT id, (SELECT max(v) FROM r WHERE r.k = l.k) AS m FROM l",
    "SELECT id, (SELECT count(*) FROM r WHERE r.k = l.k) AS c, (SELECT max(k) FROM r) AS a FROM l",
    "SELECT id, (SELECT coalesce(sum(v), -1) + count(v) FROM r WHERE r.k <=> l.k) AS c FROM l",
    "SELECT id FROM l WHERE (SELECT min(v) FROM r WHERE r.k = l.k AND r.t = 'x') > 4",
    "SELECT k, max((SELECT count(*) FROM r WHERE r.k = l.k)) AS c FROM l GROUP BY k",
    "SELECT id, (SELECT count(*) FROM r JOIN r AS q ON q.k = r.k WHERE q.k = l.k) AS c FROM l",
    "SELECT k, s, count(*) AS c, sum(n) AS n FROM l GROUP BY ROLLUP (k, s)",
    "SELECT k, s, grouping_id() AS g, max(n) AS n, sum(k) AS t FROM l GROUP BY CUBE (k, s)",
    "SELECT k, s, grouping(s) AS g, count(*) AS c FROM l GROUP BY k, s WITH ROLLUP HAVING c > 0",
    "SELECT k, median(n) AS m FROM l WHERE id > 99 GROUP BY ROLLUP (k) "
    "UNION ALL SELECT k, median(n) AS m FROM l WHERE id > 99 GROUP BY CUBE (k)",
    "SELECT k % 2 AS p, count(*) AS c, grouping_id() AS g FROM l GROUP BY ROLLUP (k % 2)",
    "SELECT (SELECT count(DISTINCT s) FROM l) AS c, (SELECT max(v) FROM r) AS v",
    "SELECT count(DISTINCT k, s) AS c, count(DISTINCT id, d, n) AS e FROM l",
    "SELECT k, sort_array(collect_list(s)) AS x, sort_array(collect_set(n)) AS y FROM l GROUP BY k",
    "SELECT sort_array(collect_list(d) FILTER (WHERE k > 1)) AS x FROM l",
    "SELECT size(collect_set(k)) AS n, size(sort_array(collect_list(s))) AS m FROM l",
    "SELECT id, sort_array(collect_list(s) OVER (PARTITION BY k)) AS x FROM l",
    "SELECT array_join(sort_array(collect_set(s)), '-') AS x FROM l WHERE id > 100",
    "SELECT listagg(s, ', ') WITHIN GROUP (ORDER BY s DESC) AS x FROM l",
    "SELECT k, listagg(DISTINCT s, '-') WITHIN GROUP (ORDER BY s) AS x FROM l GROUP BY k",
    "SELECT listagg(s, '-') WITHIN GROUP (ORDER BY s) FILTER (WHERE k > 1) AS x FROM l",
    "SELECT max_by(s, id) AS a, min_by(k, d) AS b, max_by(s, id) FILTER (WHERE k > 50) AS c FROM l",
    f"SELECT {BY.format(f='max_by')} AS a, {BY.format(f='min_by')} AS b FROM l",
    f"SELECT k, {BY.format(f='max_by')} AS a, {BY.format(f='min_by')} AS b FROM l GROUP BY k",
    "SELECT id, explode(array(k, 1)) AS x, size(split(s, 'a')) AS n FROM l",
    "SELECT DISTINCT explode(CASE WHEN k > 1 THEN split(s, ' ') END) AS x FROM l",
    "SELECT l.id, e.x FROM l LATERAL VIEW explode(split(s, 'a')) e AS x WHERE e.x = ''",
    "SELECT id, x FROM l LATERAL VIEW OUTER explode(CASE WHEN k < 3 THEN array(n) END) e AS x",
    "SELECT l.id, x, t FROM l LEFT JOIN r ON l.k = r.k LATERAL VIEW explode(array(v, 1)) e AS x",
    "SELECT id, p, x FROM l LATERAL VIEW OUTER posexplode(CASE WHEN k < 3 THEN split(s, 'a') END) "
    "e AS p, x",
    "SELECT x, p + k AS at, count(*) AS c FROM l LATERAL VIEW posexplode(array(k, n)) e AS p, x "
    "WHERE p > 0 GROUP BY x, p + k",
    "SELECT x, y, count(*) AS c FROM l LATERAL VIEW explode(array(k, 2)) e AS x "
    "LATERAL VIEW explode(array(x, id)) f AS y GROUP BY x, y",
    "SELECT a.x, max(b.id) AS m FROM (SELECT explode(array(k, 1)) AS x FROM l) a "
    "JOIN l b ON a.x = b.k GROUP BY a.x",
    "SELECT id, xs[0] AS x, xs AS y FROM (SELECT id, array(d, NULL) AS xs FROM l) WHERE "
    "size(xs) > 1",
    "SELECT array_join(xs, '-') AS x, array_contains(xs, 'a') AS a, count(xs) OVER () AS n "
    "FROM (SELECT k, sort_array(collect_list(s)) AS xs FROM l GROUP BY k)",
    "SELECT l.id, r.v FROM l CROSS JOIN r",
    "SELECT l.id, r.v FROM l, r WHERE l.id < r.v",
    "SELECT l.id, r.v FROM l LEFT JOIN r ON l.id < r.v",
    "SELECT l.s, r.t, id FROM l JOIN r USING (id)",
    "SELECT id, l.s FROM l LEFT JOIN r USING (id)",
    # The second USING is about what the first has made.
    *(
        f"SELECT id, l.s, x.k, y.s AS t FROM (SELECT * FROM l WHERE id > 2) l {one} "
        f"(SELECT id, k FROM l WHERE id < 6) x USING (id) {other} l y USING (id)"
        for one in ("LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
        for other in ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
    ),
    "SELECT id, count(*) AS c FROM (SELECT * FROM l WHERE id > 3) x FULL JOIN r USING (id) "
    "LEFT ANTI JOIN (SELECT id FROM l WHERE id = 1) y USING (id) GROUP BY id",
    "SELECT l.id, x.id AS other FROM l JOIN l AS x ON l.s = x.s AND l.id <> x.id",
    # Aliases with the name of a column: all but those in HAVING and ORDER BY are the column.
    "SELECT id, upper(s) AS s FROM l WHERE s <> 'b'",
    "SELECT id, coalesce(k, 0) AS k, k + 1 AS next, row_number() OVER (ORDER BY k, id) AS p FROM l",
    "SELECT n * 2 AS n, count(*) AS c FROM l GROUP BY n",
    "SELECT n * 2 AS n, count(*) AS c FROM l GROUP BY n * 2",
    "SELECT k AS s, max(s) AS k FROM l GROUP BY k",
    "SELECT s AS k, k AS s FROM l WHERE s = 'a'",
    "SELECT l.id, coalesce(t, s) AS t, v * 2 AS v FROM l JOIN r ON l.k = r.k WHERE v > 1",
    "SELECT x.k, x.n * 2 AS n FROM (SELECT k, n + 1 AS n FROM l WHERE n > 0) x WHERE x.n < 5",
    "SELECT n * 2 AS n FROM (SELECT k, n + 1 AS n FROM l WHERE n > 0) x WHERE n < 5",
    "WITH q AS (SELECT k, sum(n) AS n FROM l GROUP BY k) SELECT k, n * 2 AS n FROM q WHERE n > 0",
    "SELECT id, CAST(n AS string) AS n FROM l WHERE n IN (SELECT max(n) AS n FROM l)",
    "SELECT DISTINCT s FROM l",
    "SELECT DISTINCT k, s FROM l",
    "SELECT * FROM l WHERE k IN (SELECT v FROM r WHERE v IS NOT NULL) OR s = 'b'",
    "SELECT id FROM l WHERE k IN (SELECT CAST(k AS int) FROM r)",
    "SELECT id FROM l WHERE k NOT IN (SELECT CAST(k AS int) FROM r)",
    # As values they are false where they are not known.
    "SELECT id, k IN (SELECT CAST(k AS int) FROM r) AS a, k NOT IN (SELECT CAST(k AS int) FROM r) "
    "AS b, k IN (SELECT CAST(k AS int) FROM r WHERE id < 11) OR s = 'a' AS c FROM l",
    "SELECT id, NOT (k IN (SELECT v FROM r)) AS a, k NOT IN (SELECT v FROM r) AND s > 'a' AS b, "
    "CASE WHEN k NOT IN (SELECT v FROM r) THEN 1 WHEN k IN (SELECT v FROM r) THEN 2 ELSE 3 END "
    "AS c FROM l",
    "SELECT id FROM l WHERE k NOT IN (SELECT CAST(k AS int) FROM r WHERE k IS NOT NULL)",
    "SELECT id FROM l WHERE EXISTS (SELECT 1 FROM r WHERE r.k = l.k)",
    "SELECT id, (SELECT max(v) FROM r) AS most, (SELECT v FROM r WHERE v > 100) AS none FROM l",
    "SELECT id FROM l WHERE (SELECT count(*) = 0 FROM r) OR (SELECT count(*) > count(k) FROM r)",
    "SELECT id FROM l WHERE NOT EXISTS (SELECT 1 FROM (SELECT CAST(k AS int) FROM r) AS q(x) "
    "WHERE x = k)",
    "SELECT id FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE r.k = l.k AND r.v > 5)",
    *(
        f"SELECT {a} FROM l {operation} SELECT {b} FROM r"
        for operation in (
            "UNION ALL",
            "UNION",
            "INTERSECT",
            "INTERSECT ALL",
            "EXCEPT",
            "EXCEPT ALL",
        )
        for a, b in (("s", "t"), ("k", "v"))
    ),
    "SELECT s AS x FROM l UNION ALL SELECT t FROM r UNION SELECT 'q' FROM r",
    "SELECT s, count(*) AS c, sum(n) AS total, min(d), max(s) FROM l GROUP BY s",
    "SELECT k + 1 AS k1, count(*) AS c FROM l GROUP BY k + 1",
    "SELECT k, count(*) AS c FROM l GROUP BY 1 HAVING c > 1",
    "SELECT k FROM l GROUP BY k HAVING count(*) > 1 OR k IS NULL",
    "SELECT s, sum(k) * 2 AS x FROM l GROUP BY s",
    "SELECT count(*) AS c, sum(k) AS s, min(n) AS m FROM l WHERE id > 100",
    "SELECT k, count(*) AS c FROM l WHERE id > 100 GROUP BY k",
    "SELECT k, avg(k) AS a, count(DISTINCT s) AS c FROM l GROUP BY k",
    "WITH a AS (SELECT k, sum(id) AS t FROM l GROUP BY k), b AS (SELECT max(t) AS m FROM a) "
    "SELECT a.k, a.t FROM a JOIN b ON a.t = b.m",
    "SELECT q.c FROM (SELECT k, count(*) AS c FROM l GROUP BY k) AS q WHERE q.c > 1",
    "SELECT c + 1 AS d FROM (SELECT count(*) AS c FROM l)",
    *(
        f"SELECT id, d {sign} INTERVAL {days} AS a, "
        f"CAST(d AS timestamp) {sign} INTERVAL {time} AS b FROM l"
        for sign in ("+", "-")
        for days, time in (("1 DAY", "'90' MINUTES"), ("'-40' DAYS", "1 day"), ("9 day", "7 HOURS"))
    ),
    "SELECT id FROM l WHERE CAST(d AS timestamp_ntz) > TIMESTAMP_NTZ'2024-01-05 00:00:00' - "
    "INTERVAL 86401 SECONDS",
    "SELECT 1 AS __weight, * FROM (SELECT id, k FROM l) UNION ALL "
    "SELECT -1 AS __weight, * FROM (SELECT id, CAST(v AS int) AS k FROM r)",
    *(
        f"SELECT id, {call} OVER (PARTITION BY k ORDER BY {order}, id) AS w FROM l"
        for call in (
            "row_number()",
            "sum(id)",
            "count(s)",
            "min(n)",
            "max(s)",
            "lag(s)",
            "lead(id, 2)",
        )
        for order in ("s", "s DESC", "n NULLS LAST", "d DESC NULLS FIRST")
    ),
    "SELECT id, rank() OVER (ORDER BY s) AS a, dense_rank() OVER (ORDER BY s DESC) AS b FROM l",
    "SELECT id, percent_rank() OVER (PARTITION BY k ORDER BY s) AS a, "
    "cume_dist() OVER (ORDER BY s DESC) AS b FROM l",
    "SELECT id, percent_rank() OVER (PARTITION BY id ORDER BY s) AS a FROM l",
    "SELECT id, ntile(4) OVER (ORDER BY id) AS a, ntile(9) OVER (PARTITION BY k ORDER BY id) AS b "
    "FROM l",
    "SELECT id, first_value(s) OVER (ORDER BY id) AS a, last_value(n) OVER (ORDER BY id) AS b "
    "FROM l",
    "SELECT id, any_value(s) OVER (ORDER BY id) AS a, first(n) OVER (PARTITION BY k ORDER BY id) "
    "AS b, last(s) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS c FROM l",
    "SELECT id, first_value(n) OVER (PARTITION BY k ORDER BY s, id) AS a, "
    "last_value(f) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS b FROM l",
    "SELECT id, last_value(s) OVER (PARTITION BY k ORDER BY id RANGE BETWEEN UNBOUNDED PRECEDING "
    "AND UNBOUNDED FOLLOWING) AS a FROM l",
    "SELECT id, first_value(s) OVER (ORDER BY id ROWS BETWEEN 2 FOLLOWING AND 3 FOLLOWING) AS a "
    "FROM l",
    "SELECT id, lag(id, 1, 0L) OVER (ORDER BY id) AS w FROM l",
    "SELECT id, sum(n) OVER (PARTITION BY s) AS w FROM l",
    "SELECT id, sum(id) OVER (ORDER BY s) AS w FROM l",
    "SELECT id, sum(id) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS w FROM l",
    "SELECT id, sum(id) OVER (ORDER BY id ROWS UNBOUNDED PRECEDING) AS w FROM l",
    "SELECT id, max(id) OVER (ORDER BY id RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS w "
    "FROM l",
    # Frames by values: of numbers, days and times, either way, with NULL and the ends of the types.
    *(
        f"SELECT id, sum(id) OVER (ORDER BY {order} RANGE BETWEEN {frame}) AS w, "
        f"count(*) OVER (PARTITION BY s ORDER BY {order} RANGE BETWEEN {frame}) AS c FROM l"
        for by, frames in (
            ("k", ("1 PRECEDING AND CURRENT ROW", "2 PRECEDING AND 1 PRECEDING")),
            ("id", ("CURRENT ROW AND 2 FOLLOWING", "3 PRECEDING AND UNBOUNDED FOLLOWING")),
            ("d", ("2 PRECEDING AND 1 FOLLOWING", "INTERVAL 1 MONTH PRECEDING AND CURRENT ROW")),
            ("d", ("INTERVAL '2' DAYS PRECEDING AND CURRENT ROW",)),
            (
                "CAST(d AS timestamp)",
                ("INTERVAL 36 HOURS PRECEDING AND INTERVAL 24 HOURS FOLLOWING",),
            ),
            ("CAST(d AS timestamp_ntz)", ("INTERVAL 1 DAY PRECEDING AND CURRENT ROW",)),
        )
        for frame in frames
        for order in (by, f"{by} DESC", f"{by} NULLS LAST", f"{by} DESC NULLS FIRST")
    ),
    "SELECT id, sum(id) OVER (ORDER BY k * 238609294 RANGE BETWEEN 10 PRECEDING AND CURRENT ROW) "
    "AS w FROM l",
    *(
        f"SELECT id, {call} IGNORE NULLS OVER (PARTITION BY {by} ORDER BY id{frame}) AS w FROM l"
        for call in ("last_value(s)", "first_value(n)", "lag(k)", "lead(s, 2)", "nth_value(s, 2)")
        for by in ("1", "k")
        for frame in ("", " ROWS BETWEEN 2 PRECEDING AND CURRENT ROW")
        if not (frame and call.startswith("l") and "last" not in call)
    ),
    "SELECT id, nth_value(s, 2) OVER (ORDER BY id) AS a, any_value(s, true) OVER (ORDER BY id) AS "
    "b, nth_value(n, 3) OVER (PARTITION BY k ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND "
    "UNBOUNDED FOLLOWING) AS c FROM l",
    "SELECT k, every(id > 1) AS a, some(id > 3) AS b, bit_and(id) AS c, bit_or(k) AS d, "
    "bit_xor(id) FILTER (WHERE s = 'a') AS e FROM l GROUP BY k",
    "SELECT k, concat_ws(', ', collect_set(s)) AS x FROM l GROUP BY k HAVING count(s) < 2",
    "SELECT max(f) AS a, min(f) AS b, max(f) FILTER (WHERE id > 4) AS c, count(*) AS n FROM r",
    "SELECT k, max(f) OVER (PARTITION BY k) AS a, min(f) OVER (ORDER BY id) AS b FROM r",
    "SELECT id, sum(id) FILTER (WHERE s = 'a') OVER (PARTITION BY k) AS w FROM l",
    "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY k ORDER BY d DESC) AS n FROM l) "
    "WHERE n = 1",
    "SELECT s, sum(sum(k)) OVER (ORDER BY s) AS w FROM l GROUP BY s",
    "SELECT id FROM l ORDER BY s NULLS LAST, id LIMIT 3",
    "SELECT id FROM l ORDER BY s DESC, id LIMIT 3",
    "SELECT id, s AS z FROM l ORDER BY z, id LIMIT 2 OFFSET 1",
    "SELECT id AS x FROM l UNION ALL SELECT id FROM r ORDER BY x LIMIT 4",
]
