"""Random rows and queries, generated from a seed so that failures can be reproduced."""

from __future__ import annotations

import random

import pyarrow as pa

_TEXTS = ["", "a", "ab", "b%", "it's", 'q"q', "ünï", "NULL", "A", "z_z", "line\nbreak"]
_FLOATS = [0.0, -0.0, 0.25, -1.5, 3.75, 1e6, float("nan"), float("inf"), -2.0, 17.5]

_NAME_IS_A = " AND a.name = 'a'"

EVENTS = pa.schema(
    [
        ("uid", pa.int64()),
        ("k", pa.int64()),
        ("small", pa.int16()),
        ("u", pa.uint32()),
        ("s", pa.string()),
        ("d", pa.dictionary(pa.int32(), pa.string())),
        ("v", pa.string_view()),
        ("x", pa.float64()),
        ("f", pa.float32()),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us")),
        ("dec", pa.decimal128(10, 2)),
        ("timestamp_us", pa.int64()),
        ("Mixed Case", pa.int64()),
    ]
)
ACTORS = pa.schema(
    [("uid", pa.int64()), ("k", pa.int64()), ("name", pa.string()), ("rank", pa.int64())]
)
KINDS = pa.schema([("uid", pa.int64()), ("k", pa.int64()), ("s", pa.string()), ("x", pa.float64())])


def random_tables(rng: random.Random) -> dict[str, pa.Table]:
    """Return three tables of few rows, with values that match in joins and groups."""
    counts = [rng.choice([0, 1, 30, 200]), rng.choice([0, 5, 40]), rng.choice([0, 3, 25])]
    schemas = {"events": EVENTS, "actors": ACTORS, "kinds": KINDS}
    return {
        name: pa.Table.from_arrays([_column(field, count, rng) for field in schema], schema=schema)
        for (name, schema), count in zip(schemas.items(), counts, strict=True)
    }


def _column(field: pa.Field, count: int, rng: random.Random) -> pa.Array:
    if field.name in ("uid", "timestamp_us"):
        return pa.array(range(count), field.type)
    values = [None if rng.random() < 0.1 else _value(field.type, rng) for _ in range(count)]
    if pa.types.is_dictionary(field.type):
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, field.type)


def _value(kind: pa.DataType, rng: random.Random) -> object:
    if pa.types.is_integer(kind):
        return rng.randrange(12)
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_timestamp(kind):
        return rng.randrange(20) * 1_800_000_000
    if pa.types.is_decimal(kind):
        return pa.scalar(f"{rng.randrange(-500, 500) / 4:.2f}").cast(kind).as_py()
    if pa.types.is_floating(kind):
        return rng.choice(_FLOATS)
    return rng.choice(_TEXTS)


class QueryMaker:
    """Generates queries over the tables of `random_tables`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def query(self) -> str:
        """Return one query; it sorts by a unique key if the order matters."""
        makers = [
            self._rows,
            self._rows,
            self._top,
            self._groups,
            self._groups,
            self._groups,
            self._totals,
            self._join,
            self._join,
            self._join_groups,
            self._subquery,
            self._union,
            self._window,
            self._with,
            self._distinct,
        ]
        return self._rng.choice(makers)()

    def _pick(self, *texts: str) -> str:
        return self._rng.choice(texts)

    def _condition(self, depth: int = 0, of: str = "") -> str:
        pick, number = self._pick, self._rng.randrange(12)
        if depth < 2 and self._rng.random() < 0.4:
            parts = [self._condition(depth + 1, of) for _ in range(2)]
            joined = f"({parts[0]} {pick('AND', 'OR')} {parts[1]})"
            return f"NOT {joined}" if self._rng.random() < 0.2 else joined
        return pick(
            f"{of}k {pick('>', '<', '=', '<>', '>=')} {number}",
            f"{of}u % 3 = {number % 3}",
            f"{of}small BETWEEN 2 AND {number}",
            f"{of}s LIKE '{pick('a', 'b', '')}%'",
            f"{of}s ILIKE '%{pick('A', 'z', 'q')}%'",
            f"{of}s IN ('a', 'it''s', 'q\"q')",
            f"{of}d = '{pick('a', 'ab', 'b%')}'",
            f"{of}v > '{pick('a', 'B', '')}'",
            f"{of}x > {number - 4}.25",
            f"{of}x IS {pick('', 'NOT ')}NULL",
            f"{of}x = 'NaN'",
            f"{of}b",
            f"{of}b IS NOT TRUE",
            f"{of}t > TIMESTAMP '1970-01-01T0{number % 6}:00:00'",
            f"{of}dec < {number}.50",
            f"{of}timestamp_us >= {number * 9}",
            f'{of}"Mixed Case" IN (1, 2, 3, {number})',
            f"abs({of}k - 6) < 3 OR abs({of}k - 6) > 5",
            f"length({of}s) > 1",
            f"coalesce({of}k, -1) < {number}",
            f"CASE WHEN {of}b THEN {of}k ELSE {of}u END > {number}",
            f"{of}k IS DISTINCT FROM {of}u",
        )

    def _value(self, of: str = "") -> str:
        return self._pick(
            f"{of}k",
            f"{of}s",
            f"{of}x",
            f"{of}d",
            f"{of}v",
            f"{of}b",
            f"{of}t",
            f"{of}dec",
            f"{of}f",
            f"{of}small",
            f'{of}"Mixed Case"',
            f"{of}k + {of}u",
            f"upper({of}s)",
            f"CASE WHEN {of}k > 5 THEN 'high' WHEN {of}k IS NULL THEN NULL ELSE 'low' END",
            f"CAST({of}k AS VARCHAR)",
            f"date_trunc('hour', {of}t)",
            f"-{of}x",
            f"{of}s || '!'",
        )

    def _group(self, of: str = "") -> str:
        return self._pick(
            f"{of}k",
            f"{of}s",
            f"{of}d",
            f"{of}v",
            f"{of}b",
            f"{of}u % 4",
            f"upper({of}s)",
            f"date_trunc('hour', {of}t)",
            f"{of}small",
            f"{of}x",
            f"CASE WHEN {of}b THEN 'yes' ELSE 'no' END",
        )

    def _aggregate(self, of: str = "") -> str:
        pick = self._pick
        filtered = f" FILTER (WHERE {self._condition(1, of)})" if self._rng.random() < 0.25 else ""
        return pick(
            "count(*)" + filtered,
            f"count({of}s)" + filtered,
            f"sum({of}{pick('k', 'u', 'small', 'dec', 'f', 'x')})" + filtered,
            f"avg({of}{pick('k', 'u', 'f', 'x', 'dec')})" + filtered,
            f"min({of}{pick('k', 's', 't', 'dec', 'v', 'd', 'b')})" + filtered,
            # In DataFusion the order of rows determines whether NaN or a number is greater.
            f"min(nanvl({of}{pick('x', 'f')}, 0))" + filtered,
            f"max({of}{pick('k', 's', 't', 'dec', 'v', 'd', 'b')})" + filtered,
            # In DataFusion the order of rows determines whether NaN or a number is greater.
            f"max(nanvl({of}{pick('x', 'f')}, 0))" + filtered,
            f"count(DISTINCT {of}{pick('k', 's', 'x', 'd', 'b', 't')})",
            f"sum(DISTINCT {of}k)",
            f"bool_and({of}b)" + filtered,
            f"bool_or({of}k > 8)",
            f"bit_{pick('and', 'or', 'xor')}({of}k)",
            f"median({of}k)",
            f"stddev({of}k)",
            f"sum({of}k + 1) * 2",
            f"max({of}k) - min({of}k)",
            f"array_agg(DISTINCT {of}u ORDER BY {of}u)",
        )

    def _where(self, of: str = "") -> str:
        return f" WHERE {self._condition(0, of)}" if self._rng.random() < 0.8 else ""

    def _rows(self) -> str:
        columns = ", ".join(f"{self._value()} AS c{at}" for at in range(self._rng.randint(1, 4)))
        return self._pick(
            f"SELECT {columns} FROM events{self._where()}",
            f"SELECT * FROM events{self._where()}",
            f"SELECT e.uid, {self._value('e.')} FROM events AS e{self._where('e.')}",
            f'SELECT "E"."Mixed Case" AS "Other Case", uid FROM events AS "E"{self._where()}',
        )

    def _top(self) -> str:
        order = self._pick("x", "s", "k", "t", "d", "dec")
        way = self._pick("ASC", "DESC") + self._pick("", " NULLS FIRST", " NULLS LAST")
        limit = self._pick("LIMIT 3", "LIMIT 10 OFFSET 2", "LIMIT 0", "LIMIT 1000", "OFFSET 5")
        return (
            f"SELECT uid, {order}, {self._value()} AS v1 FROM events{self._where()}"
            f" ORDER BY {order} {way}, uid {limit}"
        )

    def _groups(self) -> str:
        groups = list(dict.fromkeys(self._group() for _ in range(self._rng.randint(1, 2))))
        aggregates = [f"{self._aggregate()} AS a{at}" for at in range(self._rng.randint(1, 4))]
        having = self._pick("", "", " HAVING count(*) > 2", " HAVING max(k) > 4")
        columns = [f"{each} AS g{at}" for at, each in enumerate(groups)]
        return (
            f"SELECT {', '.join(columns + aggregates)} FROM events{self._where()}"
            f" GROUP BY {', '.join(groups)}{having}"
        )

    def _totals(self) -> str:
        aggregates = [f"{self._aggregate()} AS a{at}" for at in range(self._rng.randint(1, 4))]
        return f"SELECT {', '.join(aggregates)} FROM events{self._where()}"

    def _join(self) -> str:
        how = self._pick("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
        on = self._pick("e.k = a.k", "e.s = a.name", "e.k = a.rank AND e.u < a.uid", "e.uid = a.k")
        return (
            f"SELECT e.uid, a.uid AS other, {self._value('e.')} AS v1, a.name FROM events e {how}"
            f" actors a ON {on}"
            f"{self._where('e.') or ' WHERE 1 = 1'}"
            f"{self._pick('', ' AND a.rank > 3', _NAME_IS_A)}"
        )

    def _join_groups(self) -> str:
        return (
            f"SELECT a.name, {self._aggregate('e.')} AS a0, count(*) AS n FROM events e"
            f" JOIN actors a ON e.k = a.k JOIN kinds q ON q.k = a.rank{self._where('e.')}"
            f" GROUP BY a.name"
        )

    def _subquery(self) -> str:
        inner = self._condition()
        return self._pick(
            "SELECT uid FROM events WHERE k > (SELECT avg(rank) FROM actors WHERE rank < 9)",
            "SELECT uid, k FROM events WHERE k IN (SELECT k FROM actors WHERE rank > 2) AND"
            f" {inner}",
            "SELECT name FROM actors a WHERE EXISTS (SELECT 1 FROM events e WHERE e.k = a.k"
            " AND e.b)",
            "SELECT uid FROM events e WHERE NOT EXISTS (SELECT 1 FROM kinds q WHERE q.k = e.k)",
            "SELECT uid FROM events WHERE k NOT IN (SELECT k FROM kinds WHERE k IS NOT NULL)",
            "SELECT uid FROM events e WHERE x > (SELECT min(q.x) FROM kinds q WHERE q.k = e.k)",
            f"SELECT uid FROM events WHERE k IN (SELECT k FROM kinds) OR {inner}",
            "SELECT uid, (SELECT count(*) FROM kinds q WHERE q.k = e.k) AS n FROM events e",
            f"SELECT count(*) FROM (SELECT DISTINCT k, s FROM events WHERE {inner}) z",
            "SELECT z.g, z.n FROM (SELECT k AS g, count(*) AS n FROM events GROUP BY k) z"
            " WHERE z.n > 3",
        )

    def _union(self) -> str:
        return self._pick(
            f"SELECT k, s FROM events{self._where()} UNION ALL SELECT k, s FROM kinds",
            "SELECT k FROM events UNION SELECT rank FROM actors",
            f"SELECT k FROM events{self._where()} INTERSECT SELECT k FROM kinds",
            f"SELECT k FROM kinds EXCEPT SELECT k FROM events{self._where()}",
            "SELECT 'events' AS what, count(*) AS n FROM events UNION ALL SELECT 'actors', count(*)"
            " FROM actors UNION ALL SELECT 'kinds', count(*) FROM kinds",
            f"SELECT k, count(*) AS n FROM events{self._where()} GROUP BY k UNION ALL"
            " SELECT rank, count(*) FROM actors GROUP BY rank",
        )

    def _window(self) -> str:
        return self._pick(
            "SELECT uid, row_number() OVER (PARTITION BY s ORDER BY uid) AS r FROM"
            f" events{self._where()}",
            f"SELECT uid, sum(k) OVER (ORDER BY uid) AS r FROM events{self._where()}",
            "SELECT k, count(*) AS n, rank() OVER (ORDER BY count(*) DESC) AS r FROM events"
            " GROUP BY k",
            f"SELECT uid, lag(k) OVER (ORDER BY uid) AS r FROM events{self._where()} ORDER BY"
            " uid LIMIT 7",
        )

    def _with(self) -> str:
        return self._pick(
            f"WITH p AS (SELECT k, {self._aggregate()} AS a, count(*) AS n FROM"
            f" events{self._where()}"
            " GROUP BY k) SELECT actors.name, p.a, p.n FROM actors JOIN p ON actors.k = p.k",
            "WITH p AS (SELECT k, count(*) AS n FROM events GROUP BY k)"
            " SELECT a.k, a.n, b.n AS m FROM p a JOIN p b ON a.n = b.n AND a.k < b.k",
            f"WITH p AS (SELECT * FROM events{self._where()}), q AS (SELECT k FROM kinds"
            " WHERE k > 3)"
            " SELECT p.uid, q.k FROM p LEFT JOIN q ON p.k = q.k",
            "SELECT a.uid, b.uid AS other FROM events a JOIN events b ON a.k = b.u WHERE a.b"
            " AND NOT b.b",
            "SELECT CASE WHEN n > 3 THEN 'many' ELSE 'few' END AS w, count(*) AS groups,"
            " sum(n) AS n"
            " FROM (SELECT s, count(*) AS n FROM events GROUP BY s) z GROUP BY 1",
        )

    def _distinct(self) -> str:
        return self._pick(
            f"SELECT DISTINCT {self._group()} AS g FROM events{self._where()}",
            f"SELECT DISTINCT k, s FROM events{self._where()}",
            "SELECT count(DISTINCT s) AS a, count(DISTINCT k) AS b, count(*) AS c FROM"
            f" events{self._where()}",
            f"SELECT k, count(DISTINCT s) AS n FROM events{self._where()} GROUP BY k",
            "SELECT b, k, count(*) AS n FROM events GROUP BY ROLLUP(b, k)",
        )
