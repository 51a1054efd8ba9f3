"""What a program provides for fault-tolerant training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["TrainingProgram"]


class TrainingProgram(Protocol):
    """The training of one rank: a model, its optimizer and its data.

    The constructor creates them without a process group, with the same random numbers on all ranks.
    Mesh then calls `join`, and `train_step` for each step. After a failure it loads a state with
    `load_state_dict` and calls `join` again, in the processes that survived and in those that were
    replaced.
    """

    def join(self) -> None:
        """Prepare for the current process group of `torch.distributed`: wrap the model in DDP."""

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
        """Load what `state_dict` returned in some process; its tensors are on the CPU."""
