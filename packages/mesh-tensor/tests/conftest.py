"""Processes that the tests of a file share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from mesh_core import ProcMesh, this_host
from mesh_tensor import DeviceMesh


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    # The processes share the processors.
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def procs(request: pytest.FixtureRequest) -> Iterator[ProcMesh]:
    """Processes of the sizes that the file's `SIZES` says: four, two by two, if it says none."""
    sizes = getattr(request.module, "SIZES", {"dp": 2, "tp": 2})
    procs = this_host().spawn_procs(sizes, name="tensors")
    yield procs
    procs.stop().get()


@pytest.fixture
def mesh(procs: ProcMesh) -> Iterator[DeviceMesh]:
    """All of them, active."""
    with procs.activate() as mesh:
        yield mesh
