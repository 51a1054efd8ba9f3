"""The queries and arguments of one request to the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pyarrow as pa

from mesh_core.case import ProgramCases
from mesh_telemetry._query.coverage import QueryResult
from mesh_telemetry._rows.schemas import TableDoc
from mesh_telemetry._serve.routes import RequestError

__all__ = [
    "PAGE_LEN_MAX",
    "Arguments",
    "Page",
    "PageQueries",
    "QueryFunction",
    "id_list",
    "pattern",
]

#: Runs a query with its parameters.
QueryFunction = Callable[[str, Sequence[object]], QueryResult]

PAGE_LEN_MAX = 1000
_PAGE_LEN = 200
_OFFSET_MAX = 10_000_000
_TEXT_LEN_MAX = 200
_ID_MAX = 2**64 - 1
_CONCURRENT_MAX = 4


class PageQueries:
    """Runs queries, and records which hosts have replied to all of them.

    Args:
        query: Runs a query.
        docs: The existing tables.
        cases: The saved cases.
        program: The command line of the program.

    Attributes:
        docs: The existing tables.
        cases: The saved cases.
        program: The command line of the program.
    """

    def __init__(
        self,
        query: QueryFunction,
        docs: Mapping[str, TableDoc],
        cases: ProgramCases,
        program: str = "",
    ) -> None:
        self._query = query
        self.cases: ProgramCases = cases
        self.program: str = program
        self.docs: Mapping[str, TableDoc] = docs
        self._queried: set[str] = set()
        self._failed: dict[str, str] = {}

    def has(self, table: str, column: str) -> bool:
        """Return whether a table has a column."""
        return table in self.docs and column in {one.name for one in self.docs[table].columns}

    def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """Return the rows of a query, with ids as text, which JavaScript cannot round."""
        return self._plain(self._query(sql, values))

    def rows_of_all(self, *queries: tuple[Any, ...]) -> list[list[dict[str, Any]]]:
        """Return the rows of several queries with their parameters, which run concurrently."""
        with ThreadPoolExecutor(min(_CONCURRENT_MAX, len(queries))) as threads:
            results = list(threads.map(lambda each: self._query(each[0], each[1:]), queries))
        return [self._plain(result) for result in results]

    def coverage(self) -> dict[str, Any]:
        """Return the queried hosts, and the hosts that did not reply, with the cause."""
        failed = [{"host": host, "cause": cause} for host, cause in sorted(self._failed.items())]
        return {"queried": sorted(self._queried), "failed": failed}

    def _plain(self, result: QueryResult) -> list[dict[str, Any]]:
        self._queried.update(result.coverage.queried)
        self._failed.update({one.host: one.cause for one in result.coverage.failed})
        table = result.table
        for at, field in enumerate(table.schema):
            if field.type == pa.uint64() and (field.name == "id" or field.name.endswith("_id")):
                table = table.set_column(at, field.name, table.column(at).cast(pa.string()))
        found: list[dict[str, Any]] = table.to_pylist()
        return found


class Page(NamedTuple):
    """A range of rows of a list."""

    offset: int
    length: int

    @property
    def sql(self) -> str:
        """The clause that selects the rows."""
        return f"limit {self.length} offset {self.offset}"


class Arguments:
    """The arguments of a request.

    Args:
        parameters: Names and values as received.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters

    def text(self, name: str) -> str:
        """Return a text; empty if it is missing.

        Raises:
            RequestError: It is too long.
        """
        value = self._parameters.get(name, "")
        if len(value) > _TEXT_LEN_MAX:
            text = f"{name} is too long: send at most {_TEXT_LEN_MAX} characters"
            raise RequestError(400, "bad_argument", text)
        return value

    def number(self, name: str, default: int, largest: int) -> int:
        """Return a nonnegative integer.

        Raises:
            RequestError: It is not a number, or too large.
        """
        value = self._parameters.get(name, "")
        if not value:
            return default
        if not (value.isascii() and value.isdecimal()) or int(value) > largest:
            text = f"invalid {name}: send an integer from 0 to {largest}"
            raise RequestError(400, "bad_argument", text)
        return int(value)

    def id(self, name: str) -> pa.Scalar:
        """Return an id as a query parameter.

        Raises:
            RequestError: It is not an id, or is missing.
        """
        if name not in self._parameters:
            raise RequestError(400, "bad_argument", f"missing argument {name}")
        return pa.scalar(self.number(name, 0, _ID_MAX), pa.uint64())

    def ids(self, name: str, count_max: int) -> list[int]:
        """Return a list of ids separated by commas.

        Raises:
            RequestError: A value is not an id, or there are too many.
        """
        values = [one for one in self._parameters.get(name, "").split(",") if one]
        if len(values) > count_max or not all(
            one.isascii() and one.isdecimal() and int(one) <= _ID_MAX for one in values
        ):
            text = f"invalid {name}: send at most {count_max} ids, separated by commas"
            raise RequestError(400, "bad_argument", text)
        return [int(one) for one in values]

    def has(self, name: str) -> bool:
        """Return whether an argument is present and not empty."""
        return bool(self._parameters.get(name))

    def page(self) -> Page:
        """Return the range given by `offset` and `limit`.

        Raises:
            RequestError: A value is not a number, or too large.
        """
        length = self.number("limit", _PAGE_LEN, PAGE_LEN_MAX)
        return Page(self.number("offset", 0, _OFFSET_MAX), length)


def pattern(text: str) -> str:
    r"""Return the ILIKE pattern for values that contain a text.

    Example:
        >>> pattern("50%")
        '%50\\%%'
    """
    for sign in ("\\", "%", "_"):
        text = text.replace(sign, "\\" + sign)
    return f"%{text}%"


def id_list(ids: Sequence[int | str]) -> str:
    """Return ids for an SQL IN list; 0, which no row has, if there are none."""
    return ", ".join(str(int(one)) for one in ids) or "0"
