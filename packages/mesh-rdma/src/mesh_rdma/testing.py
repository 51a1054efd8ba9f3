"""For tests: the conformance kit that each transport passes, and who has connected here.

from mesh_rdma.testing import TransportConformance

class TestMine(TransportConformance):
    transport = "mine"
"""

import typing as _typing

from mesh_rdma._counters import Refusals as Refusals
from mesh_rdma._counters import refusals as refusals
from mesh_rdma._counters import visitors as visitors

if _typing.TYPE_CHECKING:
    from mesh_rdma._kit import TransportConformance as TransportConformance


def __getattr__(name: str) -> object:
    if name == "TransportConformance":
        import pytest

        names = ("_kit", "_kit_copies", "_kit_ends", "_kit_life", "_kit_together")
        # So that a test that fails says what it has found.
        pytest.register_assert_rewrite(*(f"mesh_rdma.{name}" for name in names))
        from mesh_rdma._kit import TransportConformance

        return TransportConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "TransportConformance"})
