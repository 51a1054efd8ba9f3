"""Processes that the tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from mesh_core import ProcMesh, this_host
from mesh_tensor import DeviceMesh


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    # The processes share the CPU cores.
    torch.set_num_threads(1)


@pytest.fixture(scope="module", autouse=True)
def _no_garbage() -> None:
    # Tensors in reference cycles, and engines with them, outlive the tests of an earlier file.
    gc.collect()


@pytest.fixture(scope="session")
def procs_by_sizes() -> Iterator[dict[tuple[tuple[str, int], ...], ProcMesh]]:
    """Running processes by sizes, shared because starting them takes longer than most tests."""
    started: dict[tuple[tuple[str, int], ...], ProcMesh] = {}
    yield started
    for procs in started.values():
        procs.stop().get()


@pytest.fixture(scope="module")
def procs(
    request: pytest.FixtureRequest,
    procs_by_sizes: dict[tuple[tuple[str, int], ...], ProcMesh],
) -> ProcMesh:
    """Processes with the sizes in the file's `SIZES`; default: four, two by two.

    Files with the same sizes share them: a test that kills processes must start separate ones.
    """
    sizes = getattr(request.module, "SIZES", {"dp": 2, "tp": 2})
    key = tuple(sizes.items())
    if key not in procs_by_sizes:
        procs_by_sizes[key] = this_host().spawn_procs(sizes, name="tensors")
    return procs_by_sizes[key]


@pytest.fixture
def mesh(procs: ProcMesh) -> Iterator[DeviceMesh]:
    """All processes as an active mesh."""
    with procs.activate() as mesh:
        yield mesh
