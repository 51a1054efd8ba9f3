"""The text of a query, split into tokens to separate the syntax of Mesh from DataFusion's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa

from mesh_telemetry._errors import QueryError

__all__ = ["QueryText", "read_query", "scalars_of", "values_of"]

_TOKEN = re.compile(
    r"""
      (?P<space>\s+|--[^\n]*)
    | (?P<comment>/\*)
    | (?P<string>[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*')
    | (?P<tagged>\$(?P<tag>[A-Za-z_]\w*)?\$.*?\$(?(tag)(?P=tag))\$)
    | (?P<name>"(?:[^"]|"")*"|`(?:[^`]|``)*`)
    | (?P<placeholder>\$\w+|\?)
    | (?P<word>[^\W\d]\w*)
    | (?P<number>\d[\w.]*)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_QUERY_LEN_MAX = 1_000_000
_EXPLAIN_WORDS = ("ANALYZE", "VERBOSE")


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int

    @property
    def upper(self) -> str:
        return self.text.upper() if self.kind == "word" else self.text


@dataclass(frozen=True)
class QueryText:
    """A query without the syntax that only Mesh supports.

    Attributes:
        sql: The text for DataFusion.
        as_of_us: The time of `AS OF`, in microseconds since the epoch; None without one.
        is_explained: Whether it began with `EXPLAIN`.
        marks: The number of `?`; they are `$1`, `$2` and so on in `sql`.
    """

    sql: str
    as_of_us: int | None
    is_explained: bool
    marks: int


def read_query(text: str) -> QueryText:
    """Extract `EXPLAIN`, each `AS OF <time>`, also after `FOR SYSTEM_TIME`, and each `?`.

    A time applies to the whole query, wherever it is written.

    Raises:
        QueryError: The query is empty or too long, a time is invalid, or there are two times.

    Example:
        >>> read_query("SELECT 1 AS OF '1970-01-01T00:00:01'").as_of_us
        1000000
    """
    if len(text) > _QUERY_LEN_MAX:
        raise QueryError(
            f"a query of {len(text)} characters is too long: pass values as parameters"
        )
    tokens = [each for each in _tokens(text) if each.kind not in ("space", "comment")]
    while tokens and tokens[-1].text == ";":
        tokens.pop()
    if not tokens:
        raise QueryError("the query is empty: write one, such as SHOW TABLES")
    first = tokens[0].start
    is_explained = tokens[0].upper == "EXPLAIN"
    if is_explained:
        first = _start_of_explained(tokens)
    cuts = _time_clauses(tokens)
    times = {time for _, _, time in cuts}
    if len(times) > 1:
        raise QueryError("the query has two times: run one query for each")
    marks = [each for each in tokens if each.text == "?" and each.kind == "placeholder"]
    edits = [(start, end, "") for start, end, _ in cuts]
    edits += [(each.start, each.end, f"${at}") for at, each in enumerate(marks, 1)]
    sql, at = "", first
    for start, end, instead in sorted(edits):
        sql += text[at:start] + instead
        at = end
    sql += text[at : tokens[-1].end]
    return QueryText(sql, next(iter(times), None), is_explained, len(marks))


def scalars_of(
    parameters: Sequence[object] | Mapping[str, object] | None,
) -> list[pa.Scalar] | dict[str, pa.Scalar] | None:
    """Convert parameters to Arrow scalars, by position or by name.

    Raises:
        QueryError: A value has no SQL type.
    """
    if parameters is None:
        return None
    if isinstance(parameters, Mapping):
        return {name: _scalar(name.removeprefix("$"), one) for name, one in parameters.items()}
    if isinstance(parameters, str | bytes):
        raise QueryError("the parameters are a string: pass a list")
    return [_scalar(str(at), value) for at, value in enumerate(parameters, 1)]


def values_of(
    parameters: Sequence[object] | Mapping[str, object] | None, marks: int
) -> dict[str, pa.Scalar]:
    """Return the values of `$1` and so on, or of `$name`.

    Raises:
        QueryError: A value has no SQL type, or their number differs from the number of `?`.
    """
    if parameters is None:
        parameters = ()
    named: dict[str, object]
    if isinstance(parameters, Mapping):
        named = {name.removeprefix("$"): value for name, value in parameters.items()}
    elif isinstance(parameters, str | bytes):
        raise QueryError("the parameters are a string: pass a list")
    else:
        named = {str(at): value for at, value in enumerate(parameters, 1)}
    if marks and marks != len(named):
        raise QueryError(f"{marks} placeholders ? but {len(named)} parameters: pass one for each")
    return {name: _scalar(name, value) for name, value in named.items()}


def _scalar(name: str, value: Any) -> pa.Scalar:
    try:
        return value if isinstance(value, pa.Scalar) else pa.scalar(value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise QueryError(
            f"parameter ${name} has no SQL type ({error}): pass a plain value"
        ) from None


def _tokens(text: str) -> list[_Token]:
    tokens = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, "any character is a sign"
        end = match.end()
        kind = str(match.lastgroup) if match.lastgroup != "tag" else "tagged"
        if kind == "comment":
            end = _comment_end(text, at)
        tokens.append(_Token(kind, text[at:end], at, end))
        at = end
    return tokens


def _comment_end(text: str, at: int) -> int:
    """Find the end of a comment, which may contain nested comments."""
    depth = 0
    for match in re.compile(r"/\*|\*/").finditer(text, at):
        depth += 1 if match[0] == "/*" else -1
        if depth == 0:
            return match.end()
    return len(text)


def _start_of_explained(tokens: list[_Token]) -> int:
    at = 1
    while at < len(tokens) and tokens[at].upper in _EXPLAIN_WORDS:
        at += 1
    if at + 1 < len(tokens) and tokens[at].upper == "FORMAT":
        at += 2
    if at >= len(tokens):
        raise QueryError("EXPLAIN without a query: write a query after it")
    return tokens[at].start


def _time_clauses(tokens: list[_Token]) -> list[tuple[int, int, int]]:
    """Find the clauses with a time: start, end, and the time."""
    found = []
    for at in range(1, len(tokens) - 1):
        if (tokens[at].upper, tokens[at + 1].upper) != ("AS", "OF"):
            continue
        is_long = at >= 2 and (tokens[at - 2].upper, tokens[at - 1].upper) == ("FOR", "SYSTEM_TIME")
        value_at = at + 2
        if value_at < len(tokens) and tokens[value_at].upper == "TIMESTAMP":
            value_at += 1
        if value_at >= len(tokens) or tokens[value_at].kind not in ("string", "number"):
            if is_long:
                raise QueryError("no time after AS OF: write '2026-01-31T12:00:00' or microseconds")
            continue
        # If `of` is the name of a column or table, no value can follow it.
        value = tokens[value_at]
        found.append((tokens[at - 2 if is_long else at].start, value.end, _time_us(value)))
    return found


def _time_us(token: _Token) -> int:
    if token.kind == "number" and token.text.isdecimal():
        return int(token.text)
    try:
        moment = datetime.fromisoformat(token.text.strip("'"))
    except ValueError:
        raise QueryError(
            f"{token.text} is not a time: write '2026-01-31T12:00:00' (UTC) or microseconds since"
            " the epoch"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1_000_000 + delta.microseconds
