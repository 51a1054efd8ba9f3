"""Implementation of `mesh_tensor.random`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from mesh_tensor._mesh.activation import mesh_or_active
from mesh_tensor._remote.function import remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._mesh.device_mesh import DeviceMesh

__all__ = ["random"]

#: The distance between the seeds of adjacent ranks. It is large, so that consecutive seeds of a
#: program do not give two ranks the same seed.
_STRIDE = 0x9E37_79B9


def _seed_here(seed: int, place: torch.Tensor | None) -> None:
    own = seed if place is None else seed + _STRIDE * int(place)
    # This also seeds the accelerators of the process.
    torch.manual_seed(own & 0x7FFF_FFFF_FFFF_FFFF)


def _state_here() -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_here(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"].cpu().clone())
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"].cpu().clone())


def _be_deterministic() -> None:
    # cuBLAS reads this variable when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


_seed = remote(_seed_here, propagate="inspect")
_state = remote(_state_here)
_restore = remote(_restore_here, propagate="inspect")
_deterministic = remote(_be_deterministic, propagate="inspect")


class random:
    """The random number generators of the processes: seeding, and saving and restoring state.

    Each process has its own generators. `torch.manual_seed` seeds only the generators of the
    program, even while a mesh is active; `mesh_tensor.random.manual_seed` seeds those in the
    processes.
    """

    @staticmethod
    def manual_seed(
        seed: int, per_rank: bool | str | Sequence[str] = True, mesh: DeviceMesh | None = None
    ) -> None:
        """Seed the generators of the processes.

        Args:
            seed: The base seed.
            per_rank: If True, each process gets a different seed; if False, all get the same. A
                dimension or a sequence of dimensions gives different seeds only to processes with
                different coordinates in these dimensions.
            mesh: The processes. Default: the active mesh.

        Raises:
            UnknownDim: The mesh has no such dimension.
            TensorError: No mesh is passed and none is active.
        """
        goal = mesh_or_active(mesh)
        with goal.activate():
            if per_rank is False or (per_rank is True and not goal.sizes):
                _seed(seed, None)
            else:
                _seed(seed, goal.rank(None if per_rank is True else per_rank))

    @staticmethod
    def get_state(mesh: DeviceMesh | None = None) -> dict[str, torch.Tensor]:
        """Return the states of the generators as distributed tensors, by device type.

        Raises:
            TensorError: No mesh is passed and none is active.
        """
        with mesh_or_active(mesh).activate(), torch.no_grad():
            states: dict[str, torch.Tensor] = _state()
        return states

    @staticmethod
    def set_state(states: dict[str, torch.Tensor]) -> None:
        """Restore the generators to the states that `get_state` returned."""
        _restore(states)

    @staticmethod
    def make_deterministic(mesh: DeviceMesh | None = None) -> None:
        """Make the processes use deterministic algorithms only.

        Operations without a deterministic implementation raise an error.

        Raises:
            TensorError: No mesh is passed and none is active.
        """
        with mesh_or_active(mesh).activate():
            _deterministic()
