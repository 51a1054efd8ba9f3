"""Simulated hosts, each with a part of the rows of some tables."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import pyarrow as pa

from mesh_telemetry._query.engine import run_fragment
from mesh_telemetry._query.fragment import Fragment, FragmentReply
from mesh_telemetry._rows.time_column import TIME_COLUMN


class HostRows:
    """The rows of one host."""

    def __init__(self, tables: Mapping[str, pa.Table]) -> None:
        self.schemas = {name: table.schema for name, table in tables.items()}
        self.since: list[tuple[str, int | None]] = []
        self._tables = tables

    def batches(
        self, table: str, since_us: int | None, until_us: int | None
    ) -> list[pa.RecordBatch]:
        self.since.append((table, since_us))
        rows = self._tables[table]
        if until_us is not None and TIME_COLUMN in rows.column_names:
            times = rows.column(TIME_COLUMN).to_pylist()
            rows = rows.filter(pa.array([time <= until_us for time in times], pa.bool_()))
        return rows.to_batches(max_chunksize=1 << 20)


class Shards:
    """Hosts that can be queried, with a record of the queries."""

    def __init__(self, hosts: Mapping[str, HostRows]) -> None:
        self.hosts = hosts
        self.fragments: list[Fragment] = []

    def ask(self, fragment: Fragment) -> Iterator[FragmentReply]:
        self.fragments.append(fragment)
        for host, rows in self.hosts.items():
            try:
                yield FragmentReply(host, run_fragment(fragment, rows), None)
            except Exception as error:
                yield FragmentReply(host, None, str(error))


def spread(tables: Mapping[str, pa.Table], count: int, rng: random.Random) -> Shards:
    """Split every table at random into a part for each host; some parts are empty."""
    shares: list[dict[str, pa.Table]] = [{} for _ in range(count)]
    for name, table in tables.items():
        cuts = sorted(rng.randint(0, table.num_rows) for _ in range(max(0, count - 1)))
        for share, start, end in zip(shares, [0, *cuts], [*cuts, table.num_rows], strict=False):
            share[name] = table.slice(start, end - start)
    return Shards({f"host{at}": HostRows(share) for at, share in enumerate(shares)})


def evenly(tables: Mapping[str, pa.Table], count: int) -> Shards:
    """Split every table evenly among the hosts."""
    hosts = {}
    for at in range(count):
        share = {}
        for name, table in tables.items():
            size = -(-table.num_rows // count)
            share[name] = table.slice(at * size, size)
        hosts[f"host{at}"] = HostRows(share)
    return Shards(hosts)
