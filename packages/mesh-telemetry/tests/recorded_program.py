"""The rows of a program that is recorded."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
from recorded_actors import LIMIT_S

from mesh_core.testing import wait_until
from mesh_telemetry import TelemetryConfig
from mesh_telemetry._rows.schemas import TABLES
from mesh_telemetry._tables.host_tables import HostTables


def config(place: Path, **options: Any) -> TelemetryConfig:
    """Return options of a telemetry that stores events in this folder."""
    return TelemetryConfig(directory=str(place), **options)


def host_folders(place: Path) -> list[Path]:
    """Return the folders of all hosts of all programs in a place."""
    return sorted(place.glob(f"mesh-telemetry-{os.geteuid()}-*/*"))


def host_tables(place: Path, **options: Any) -> HostTables:
    """Return the tables of the only host of the only program."""
    (folder,) = host_folders(place)
    return HostTables(folder, **options)


def rows(tables: HostTables, name: str, until_us: int | None = None) -> list[dict[str, Any]]:
    """Return all rows of a table, including the latest events."""
    tables.refresh(5.0)
    batches = tables.batches(name, None, until_us)
    assert all(batch.schema == TABLES[name] for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    found: list[dict[str, Any]] = pa.Table.from_batches(batches, TABLES[name]).to_pylist()
    return found


def wait_for_rows(
    tables: HostTables, table: str, count: int = 1, /, **wanted: Any
) -> list[dict[str, Any]]:
    """Wait until this number of rows of a table have the wanted values, and return them."""

    def found() -> list[dict[str, Any]]:
        some = [row for row in rows(tables, table) if all(row[k] == v for k, v in wanted.items())]
        return some if len(some) >= count else []

    return wait_until(found, LIMIT_S)


def kept_bytes(folder: Path) -> int:
    """Return the total size of the files in a folder."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total
