"""What `mesh_tensor.random` offers."""

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

#: Seeds of neighbours are this far apart, so that seeds counted up by a program do not meet them.
_STRIDE = 0x9E37_79B9


def _seed_here(seed: int, place: torch.Tensor | None) -> None:
    own = seed if place is None else seed + _STRIDE * int(place)
    # Also seeds the accelerators of the process.
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
    # Read by cuBLAS when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


_seed = remote(_seed_here, propagate="inspect")
_state = remote(_state_here)
_restore = remote(_restore_here, propagate="inspect")
_deterministic = remote(_be_deterministic, propagate="inspect")


class random:
    """The random numbers of the processes: where they begin, and how they are brought back.

    Each process draws from generators of its own. `torch.manual_seed` seeds those of the program
    alone, also while a mesh is active: `mesh_tensor.random.manual_seed` those of the processes.
    """

    @staticmethod
    def manual_seed(
        seed: int, per_rank: bool | str | Sequence[str] = True, mesh: DeviceMesh | None = None
    ) -> None:
        """Seeds the generators of the processes.

        Args:
            seed: From what all of them begin.
            per_rank: Whether each process draws other numbers; or the dimensions of the mesh along
                which they differ, while processes in the same place of these draw the same ones.
            mesh: Which processes; those of the active mesh where none is said.

        Raises:
            UnknownDim: There is no such dimension.
            TensorError: No mesh is said, and none is active.
        """
        goal = mesh_or_active(mesh)
        with goal.activate():
            if per_rank is False or (per_rank is True and not goal.sizes):
                _seed(seed, None)
            else:
                _seed(seed, goal.rank(None if per_rank is True else per_rank))

    @staticmethod
    def get_state(mesh: DeviceMesh | None = None) -> dict[str, torch.Tensor]:
        """Gives the states of the generators as distributed tensors, by the kind of device.

        Raises:
            TensorError: No mesh is said, and none is active.
        """
        with mesh_or_active(mesh).activate(), torch.no_grad():
            states: dict[str, torch.Tensor] = _state()
        return states

    @staticmethod
    def set_state(states: dict[str, torch.Tensor]) -> None:
        """Brings the generators back to where they were at `get_state`."""
        _restore(states)

    @staticmethod
    def make_deterministic(mesh: DeviceMesh | None = None) -> None:
        """Has torch use what gives the same on each run, or raise where there is nothing such.

        Raises:
            TensorError: No mesh is said, and none is active.
        """
        with mesh_or_active(mesh).activate():
            _deterministic()
