"""Makes a failing assertion of the conformance tests report the compared values.

This module is imported before the modules with the tests, and not by the processes of the tests,
which do not need pytest.
"""

from __future__ import annotations

import pytest

__all__: list[str] = []

pytest.register_assert_rewrite(
    "mesh_rdma._kit.copy_tests",
    "mesh_rdma._kit.termination_tests",
    "mesh_rdma._kit.lifetime_tests",
    "mesh_rdma._kit.concurrency_tests",
)
