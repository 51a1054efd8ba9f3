"""Conformance tests for backends, run with pytest.

Example::

    from mesh_jobs.testing import JobConformance

    class TestMine(JobConformance):
        @pytest.fixture
        def factory(self, tmp_path): ...
"""

from mesh_jobs._conformance.suite import JobConformance as JobConformance
from mesh_jobs._conformance.suite import JobFactory as JobFactory
from mesh_jobs._conformance.worker_pids import worker_pids as worker_pids
