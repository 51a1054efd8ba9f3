"""Values that the program has requested from the processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mesh_core import SupervisionError

if TYPE_CHECKING:
    from mesh_core import Future, ValueMesh
    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._tensor.ref import Ref

__all__ = ["Fetched"]


@dataclass(frozen=True)
class Fetched:
    """A value that has been requested.

    Attributes:
        engine: The engine of the value.
        ref: The value; kept alive until the reply has arrived.
        rank: The process that sends the value.
        answer: The replies of all processes, sent once they have executed everything before the
            request. Only the process `rank` replies with a value.
    """

    engine: Engine
    ref: Ref
    rank: int
    answer: Future[ValueMesh[Any]]

    def value(self) -> Any:
        """Return the value; wait for it if necessary.

        Raises:
            OpFailed: Something that the value depends on has failed on some process.
        """
        try:
            answers = self.answer.get()
        except SupervisionError as error:
            # If one process dies, everything that the processes have computed together is lost.
            self.engine.stream.fail(error)
            raise
        self.engine.check(self.ref)
        return list(answers.values())[self.rank]
