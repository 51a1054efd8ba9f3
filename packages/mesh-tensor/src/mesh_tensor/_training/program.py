"""The interface that a program implements for fault-tolerant training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TrainingProgram"]


class TrainingProgram(Protocol):
    """The training of one rank: a model, its optimizer and its data.

    The constructor creates them without a process group, with the same random numbers on all ranks.
    Mesh then calls `join`, and `train_step` for each step. After a failure, it calls `join` again,
    in the surviving and in the replaced processes, and then `load_state_dict`.
    """

    def join(self) -> None:
        """Prepare for the current process group of `torch.distributed`.

        Wrap the model in DDP, or create it again and shard it with FSDP.
        """

    def train_step(self, step: int) -> float | None:
        """Train one step, and return its loss if it should be recorded.

        The generators of `random`, `numpy` and `torch` are seeded before each step, differently for
        each step and rank, so a step that is repeated draws the same numbers.

        Args:
            step: The number of the step, from 0.
        """

    def state_dict(self) -> Mapping[str, Any]:
        """Return everything that the following steps depend on: model, optimizer, scheduler.

        Tensors are copied by the caller before the next step.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state that `state_dict` returned in some process.

        Its tensors are on the CPU. Tensors that were a `DTensor` are a `DTensor` again, on the
        device mesh of the new process group.
        """
