"""At the maximum message rate, stored data stays within its limits for a while, also in memory."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from recorded_actors import LIMIT_S, Worker
from recorded_program import config, host_folders, kept_bytes

from mesh_core.testing import LocalProcs, proc_pid
from mesh_telemetry import Telemetry

MIB = 1 << 20
PROC_BYTES = MIB
SPILL_BYTES = 4 * MIB
#: Data in transit while the oldest files are being removed.
SPILL_SLACK_BYTES = 24 * MIB
PROC_GROWTH_BYTES = 24 * MIB
HOST_GROWTH_BYTES = 200 * MIB


class Look(NamedTuple):
    """The resource use at one time."""

    live: int
    spilled: int
    recorded: int
    host: int


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak(place: Path, spill: Path, procs: Any, duration_s: float) -> None:
    options = {"proc_bytes": PROC_BYTES, "host_cache_bytes": 16 * MIB, "spill": str(spill)}
    with Telemetry(config(place, **options, spill_bytes=SPILL_BYTES)) as telemetry:
        telemetry.watch(procs)
        worker: Any = procs.spawn("worker", Worker)
        (handle,) = telemetry._started().hosts.call_one().get(LIMIT_S)
        pids = proc_pid(procs), proc_pid(handle.rows)
        (folder,) = host_folders(place)
        looks: list[Look] = []
        began = time.monotonic()
        sent = 0
        while time.monotonic() - began < duration_s:
            for _ in range(8):
                sent += worker.flood.call_one(2000).get(LIMIT_S)
            sql = "select count(*) as n, max(timestamp_us) as t from sent_messages"
            (found,) = telemetry.query(sql, timeout=LIMIT_S).table.to_pylist()
            assert 0 < found["n"] <= sent * 2
            assert time.time() - found["t"] / 1e6 < LIMIT_S
            looks.append(Look(kept_bytes(folder), kept_bytes(spill), *map(rss_bytes, pids)))
        warm, rest = looks[len(looks) // 3], looks[len(looks) // 3 :]
        # Three processes write there: the program, the busy one, and briefly a third.
        assert max(look.live for look in rest) < 3 * PROC_BYTES
        assert max(look.spilled for look in rest) < SPILL_BYTES + SPILL_SLACK_BYTES
        assert max(look.recorded for look in rest) < warm.recorded + PROC_GROWTH_BYTES
        assert max(look.host for look in rest) < warm.host + HOST_GROWTH_BYTES


def test_stored_data_stays_within_its_limits(
    place: Path, tmp_path: Path, local_procs: LocalProcs
) -> None:
    soak(place, tmp_path / "kept", local_procs(name="busy"), 5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stored_data_stays_within_its_limits_for_minutes(
    place: Path, tmp_path: Path, local_procs: LocalProcs
) -> None:
    soak(place, tmp_path / "kept", local_procs(name="busy"), 300)
