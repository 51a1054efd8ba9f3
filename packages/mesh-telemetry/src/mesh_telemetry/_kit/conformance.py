"""Conformance tests for packages that add tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from mesh_core.spi import EventStream
from mesh_telemetry import Telemetry
from mesh_telemetry._rows.added_tables import added_tables
from mesh_telemetry._rows.schemas import TABLES, column
from mesh_telemetry._sources import GROUP, SourceTable

__all__ = ["SourceConformance"]


class SourceTests(ABC):
    """Tests that apply to every package that adds tables."""

    source: ClassVar[str]

    @abstractmethod
    def happening(self) -> AbstractContextManager[None]:
        """Record rows on entry, and provide rows for live tables while open."""

    @pytest.fixture
    def added(self) -> Mapping[str, SourceTable]:
        """The tables of the entry point."""
        (entry,) = entry_points(group=GROUP, name=self.source)
        return {name: SourceTable(*table) for name, table in entry.load().items()}

    def test_a_source_adds_tables_with_unique_names(self, added: Mapping[str, SourceTable]) -> None:
        assert added, "a source has tables"
        for name in added:
            assert name.isidentifier(), f"{name}: letters, digits, and _ between them"
            assert name == name.lower(), f"{name}: write it in lower case"
            assert name not in TABLES, f"{name}: mesh-telemetry has such a table"

    def test_tables_and_columns_are_described(self, added: Mapping[str, SourceTable]) -> None:
        for name, table in added.items():
            assert table.text.endswith("."), f"{name}: say in a sentence what its rows are"
            columns = [column(declared).name for declared in table.columns]
            assert len(set(columns)) == len(columns), f"{name}: each column once"
            taken = {"timestamp_us", "actor_id", "host", "proc"} & set(columns)
            assert not taken, f"{name}: {taken} are added by mesh-telemetry"

    def test_live_rows_of_this_process_fit_their_columns(
        self, added: Mapping[str, SourceTable]
    ) -> None:
        with self.happening():
            for name, table in added.items():
                if table.rows is not None:
                    _check(name, table, list(table.rows()))

    def test_recorded_rows_fit_their_columns(self, added: Mapping[str, SourceTable]) -> None:
        told: dict[str, list[Mapping[str, Any]]] = {name: [] for name in added}
        with EventStream.subscribe(["row"]) as stream, self.happening():
            for event in stream.poll(1 << 20):
                if event.text in told:
                    told[event.text].append(event.attributes or {})
        for name, table in added.items():
            if table.rows is None:
                assert told[name], f"{name}: no row was told in this process"
                _check(name, table, told[name])

    def test_no_rows_are_recorded_without_a_subscriber(self) -> None:
        with self.happening(), EventStream.subscribe(["row"]) as stream:
            assert stream.poll() == []

    def test_tables_can_be_queried(self, added: Mapping[str, SourceTable]) -> None:
        with Telemetry() as telemetry, self.happening():
            for name, table in added.items():
                rows = telemetry.query(
                    f"select * from {name}", timeout=30.0, require_full=True
                ).table.to_pylist()
                assert rows, f"{name}: there is no row"
                assert list(rows[0]) == added_tables([name])[0].schema.names
                # Values that do not fit their column have been replaced by null.
                own = {one.name for one in map(column, table.columns)}
                _check(name, table, [{key: row[key] for key in own} for row in rows])


class SourceConformance(SourceTests):
    """Conformance tests for a package that adds tables; derive a class that names its entry point.

        class TestMine(SourceConformance):
            source = "mine"

            def happening(self):
                return my_package.something_to_look_at()

    `source` is the name of the entry point in the group `mesh_telemetry.sources`. While `happening`
    is open, each live table must have a row, and for each other table at least one row must have
    been recorded. The tests require pytest and the processes that `happening` spawns.

    Attributes:
        source: The name of the entry point.
    """


def _check(name: str, table: SourceTable, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = {one.name: one for one in map(column, table.columns)}
    for row in rows:
        unknown = set(row) - set(columns)
        assert not unknown, f"{name}: it has no columns {unknown}"
        for one in columns.values():
            value = row.get(one.name)
            assert value is not None or one.is_nullable, f"{name}.{one.name} is null: declare it so"
            assert value is None or _fits(value, one.type), f"{name}.{one.name}: {value!r} is none"


def _fits(value: Any, kind: pa.DataType) -> bool:
    checks: dict[pa.DataType, Callable[[Any], bool]] = {
        pa.string(): lambda one: isinstance(one, str),
        pa.bool_(): lambda one: isinstance(one, bool),
        pa.float64(): lambda one: isinstance(one, int | float),
    }
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return checks.get(kind, lambda _: is_whole)(value)
