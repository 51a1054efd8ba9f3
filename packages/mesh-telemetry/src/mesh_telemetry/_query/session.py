"""DataFusion sessions that only read, with a limit of memory."""

from __future__ import annotations

import re
from collections.abc import Iterable

import datafusion
import pyarrow as pa

from mesh_telemetry._errors import QueryError

__all__ = ["empty_batch", "new_session", "open_frame", "readable"]

_READ_ONLY = (
    datafusion.SQLOptions().with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
)
_SETTINGS = {
    # The optimizer turns an uncorrelated scalar subquery into a join, which can be split.
    "datafusion.optimizer.enable_physical_uncorrelated_scalar_subquery": "false",
    "datafusion.sql_parser.map_string_types_to_utf8view": "false",
}
_PREFIX = re.compile(
    r"^(?:DataFusion error: |Error during planning: |External error: |Arrow error: "
    r"|Execution error: |SQL error: |Schema error: |caused by\s+)+"
)
_NOT_READING = re.compile(r"(?:DDL|DML|Statement) not supported")
_NO_TABLE = re.compile(r"table '(?:datafusion\.)?(?:public\.)?([^']*)' not found")


def new_session(memory_max_bytes: int, partitions: int = 1) -> datafusion.SessionContext:
    """Create a session with a memory limit for sorting, grouping and joining."""
    config = (
        datafusion.SessionConfig().with_information_schema(True).with_target_partitions(partitions)
    )
    for name, value in _SETTINGS.items():
        config = config.set(name, value)
    runtime = (
        datafusion.RuntimeEnvBuilder()
        .with_disk_manager_disabled()
        .with_greedy_memory_pool(memory_max_bytes)
    )
    session = datafusion.SessionContext(config, runtime)
    # The nullability of extracted subexpressions may differ from the plan, which makes the query
    # fail.
    session.remove_optimizer_rule("common_sub_expression_eliminate")
    return session


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows: a table needs at least one batch to know its columns."""
    return pa.RecordBatch.from_arrays(
        [pa.array([], type=field.type) for field in schema], schema=schema
    )


def open_frame(
    session: datafusion.SessionContext,
    sql: str,
    tables: Iterable[str],
    values: dict[str, pa.Scalar] | None = None,
) -> datafusion.DataFrame:
    """Plan a statement that reads.

    Args:
        session: The session that has its tables.
        sql: The statement.
        tables: The existing tables, for the error if the statement names another one.
        values: The values of its parameters.

    Raises:
        QueryError: It cannot be parsed or planned, or it would modify data.
    """
    try:
        return session.sql_with_options(sql, _READ_ONLY, values)
    except Exception as error:
        raise QueryError(_advice(str(error), sorted(tables))) from None


def readable(text: str) -> str:
    """Return DataFusion's error text without the names of its layers."""
    return _PREFIX.sub("", text.strip()).rstrip(".").replace("datafusion.public.", "")


def _advice(text: str, tables: list[str]) -> str:
    missing = _NO_TABLE.search(text)
    if missing is not None:
        return f"no table {missing[1]}: the tables are {', '.join(tables) or 'none'}"
    if _NOT_READING.search(text):
        return f"{readable(text)}: only read queries are supported"
    return f"{readable(text)}: correct the query"
