"""The descriptions of transports between processes for users."""

from __future__ import annotations

import json

from mesh_core.testing import LocalProcs, local_procs
from mesh_rdma import doctor, explain

__all__ = ["local_procs"]  # This is a fixture, which pytest finds by name.


def test_every_pair_is_explained(local_procs: LocalProcs) -> None:
    told = explain(local_procs({"procs": 2}))
    assert told.count("arena: taken to ") == 2
    for pair in ("rank 0 from rank 1", "rank 1 from rank 0"):
        assert pair in told
    for refused in ("memory: it belongs to another process", "tcp: a better one is used"):
        assert told.count(refused) == 2


def test_the_doctor_measures_every_transport_of_every_pair(local_procs: LocalProcs) -> None:
    found = doctor(local_procs({"procs": 2}), nbytes=1 << 20)
    usable = {(path.reader, path.owner, path.transport) for path in found.paths if not path.refused}
    pairs = [(0, 1), (1, 0)]
    assert {(*pair, name) for pair in pairs for name in ("arena", "attach", "unix")} <= usable
    assert [path.transport for path in found.paths if path.is_selected] == ["arena", "arena"]
    assert all(
        path.bytes_per_s and path.latency_s and path.share for path in found.paths if path.share
    )
    assert len(json.loads(json.dumps(found.to_json()))["paths"]) == len(found.paths)
    assert "READER" in str(found)


def test_a_single_process_is_measured_against_itself(local_procs: LocalProcs) -> None:
    found = doctor(local_procs({"procs": 1}), nbytes=1 << 20)
    assert {path.transport for path in found.paths if not path.refused} == {"memory"}
