"""Resource limits of a query process, enforced by the kernel."""

from __future__ import annotations

import math
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mesh_telemetry._errors import QueryError
from mesh_telemetry._query.fragment import TOO_MUCH

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from mesh_telemetry._disk.stored_tables import TableRows
    from mesh_telemetry._tables.extended_rows import ExtendedRows

__all__ = [
    "SLACK_BYTES",
    "UnlimitedRows",
    "limit_cpu",
    "limit_files",
    "limited_memory",
    "out_of_memory",
]

#: Address space beyond the memory pool of the engine: decoding, thread stacks, allocator reserves.
SLACK_BYTES = 512 << 20
_STDERR_BYTES_MAX = 64 << 10
_CPU_SLACK_S = 2


def out_of_memory(byte_count: int) -> QueryError:
    """Return the error of a query that exceeds its memory limit of `byte_count` bytes."""
    return QueryError(
        f"{TOO_MUCH}it exceeds the limit of {byte_count >> 20} MiB of memory for a query: filter,"
        " aggregate, or limit it"
    )


def limit_files() -> None:
    """Permanently disable core dumps and large files in this process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_STDERR_BYTES_MAX, _STDERR_BYTES_MAX))
    # The import system does not detect a short write. Modules imported from now on would leave
    # truncated bytecode, which no process of the installation could load.
    sys.dont_write_bytecode = True


def limit_cpu(wall_s: float) -> None:
    """Limit CPU time to the time that all cores provide in `wall_s` seconds from now.

    The deadline itself is enforced by the telemetry process. This limit ends a process that is no
    longer supervised.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    cores = len(os.sched_getaffinity(0))
    allowed = used.ru_utime + used.ru_stime + wall_s * cores + _CPU_SLACK_S
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(allowed)
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if most == resource.RLIM_INFINITY else min(soft, most), most)
    )


@contextmanager
def limited_memory(byte_count: int) -> Iterator[None]:
    """Limit the growth of the address space within the block to a number of bytes."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    _, most = before
    soft = _address_space_bytes() + byte_count
    if most != resource.RLIM_INFINITY:
        soft = min(soft, most)
    resource.setrlimit(resource.RLIMIT_AS, (soft, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class UnlimitedRows:
    """The rows of a host, decoded without counting towards the memory limit of a query.

    The size of tables depends on the configuration of telemetry, not on the query.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: ExtendedRows) -> None:
        self._rows = rows

    @property
    def schemas(self) -> Mapping[str, pa.Schema]:
        """The columns of each table."""
        return self._rows.schemas

    @property
    def scratch(self) -> Path:
        """A folder in which links to files can be created."""
        return self._rows.scratch

    def batches(
        self, table: str, since_us: int | None, until_us: int | None
    ) -> list[pa.RecordBatch]:
        """Return the rows of a table, as `HostTables.batches` does."""
        with _unlimited_memory():
            return self._rows.batches(table, since_us, until_us)

    def table_rows(self, table: str, since_us: int | None, until_us: int | None) -> TableRows:
        """Return the rows of a table, as `HostTables.table_rows` does."""
        with _unlimited_memory():
            return self._rows.table_rows(table, since_us, until_us)


@contextmanager
def _unlimited_memory() -> Iterator[None]:
    """Suspend `limited_memory` within the block, and add memory allocated there to its limit."""
    soft, most = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        yield
        return
    before = _address_space_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    try:
        yield
    finally:
        grown = max(_address_space_bytes() - before, 0)
        soft += grown
        if most != resource.RLIM_INFINITY:
            soft = min(soft, most)
        resource.setrlimit(resource.RLIMIT_AS, (soft, most))


def _address_space_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
