"""For tests: the conformance tests that each transport must pass, and connection counters.

from mesh_rdma.testing import TransportConformance

class TestMine(TransportConformance):
    transport = "mine"
"""

import typing as _typing

from mesh_rdma._diagnosis.connection_counts import RejectedConnections as RejectedConnections
from mesh_rdma._diagnosis.connection_counts import connected_peers as connected_peers
from mesh_rdma._diagnosis.connection_counts import rejected_connections as rejected_connections

if _typing.TYPE_CHECKING:
    from mesh_rdma._kit.conformance import TransportConformance as TransportConformance


def __getattr__(name: str) -> object:
    if name == "TransportConformance":
        # Programs without pytest count connections with this module.
        from mesh_rdma._kit.conformance import TransportConformance  # noqa: PLC0415

        return TransportConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "TransportConformance"})
