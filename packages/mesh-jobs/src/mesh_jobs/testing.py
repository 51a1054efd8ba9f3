"""Conformance tests for backends, run with pytest.

Example::

    from mesh_jobs.testing import JobConformance

    class TestMine(JobConformance):
        @pytest.fixture
        def factory(self, tmp_path): ...
"""

import typing as _typing

from mesh_jobs._conformance.worker_pids import worker_pids as worker_pids

if _typing.TYPE_CHECKING:
    from mesh_jobs._conformance.suite import JobConformance as JobConformance
    from mesh_jobs._conformance.suite import JobFactory as JobFactory


def __getattr__(name: str) -> object:
    if name in ("JobConformance", "JobFactory"):
        from mesh_jobs._conformance import suite

        return getattr(suite, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "JobConformance", "JobFactory"})
