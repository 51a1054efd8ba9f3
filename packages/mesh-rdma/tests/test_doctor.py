"""The descriptions of transports between processes for users."""

from __future__ import annotations

import json

from mesh_core.testing import LocalProcs, local_procs
from mesh_rdma import doctor, explain

__all__ = ["local_procs"]  # This is a fixture, which pytest finds by name.


def test_every_pair_is_told_which_way_is_taken_and_why_no_other(local_procs: LocalProcs) -> None:
    told = explain(local_procs({"procs": 2}))
    assert told.count("arena: taken to ") == 2
    for pair in ("rank 0 from rank 1", "rank 1 from rank 0"):
        assert pair in told
    for refused in ("memory: it belongs to another process", "tcp: a better one is used"):
        assert told.count(refused) == 2


def test_the_doctor_measures_every_way_of_every_pair(local_procs: LocalProcs) -> None:
    found = doctor(local_procs({"procs": 2}), nbytes=1 << 20)
    usable = {(way.reader, way.owner, way.transport) for way in found.ways if not way.refused}
    pairs = [(0, 1), (1, 0)]
    assert {(*pair, name) for pair in pairs for name in ("arena", "attach", "unix")} <= usable
    assert [way.transport for way in found.ways if way.is_taken] == ["arena", "arena"]
    assert all(way.bytes_per_s and way.latency_s and way.share for way in found.ways if way.share)
    assert len(json.loads(json.dumps(found.to_json()))["ways"]) == len(found.ways)
    assert "READER" in str(found)


def test_a_process_alone_is_measured_against_itself(local_procs: LocalProcs) -> None:
    found = doctor(local_procs({"procs": 1}), nbytes=1 << 20)
    assert {way.transport for way in found.ways if not way.refused} == {"memory"}
