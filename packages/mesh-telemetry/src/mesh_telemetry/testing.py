"""Conformance tests for packages that add tables.

class TestMine(SourceConformance):
    source = "mine"
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from mesh_telemetry._kit import SourceConformance as SourceConformance


def __getattr__(name: str) -> object:
    if name == "SourceConformance":
        import pytest

        # Assertions in the conformance tests then report the values that they compared.
        pytest.register_assert_rewrite("mesh_telemetry._kit")
        from mesh_telemetry._kit import SourceConformance

        return SourceConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "SourceConformance"})
