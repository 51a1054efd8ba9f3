"""Gradients that come together in parameters while a trace is recorded, and when it is replayed.

Where a gradient is put belongs to the parameter, an object of the program; a trace has values
alone. So it is noted what became of each parameter's gradient, and done again at each replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh_tensor._tensor.tensor import Tensor
    from mesh_tensor._trace.recorder import Recorder

__all__ = ["Gradient", "Gradients"]


class Gradient:
    """What a function does to the gradient of one parameter.

    Attributes:
        parameter: Of which.
        was_there: Whether it had one before.
        meta: What that is like, where the function uses it.
        is_replaced: Whether it has another one after it, or none.
        number: Which value of the trace that is; none where there is none.
    """

    def __init__(self, parameter: Tensor, before: Any, recorder: Recorder) -> None:
        after: Any = parameter.grad
        self.parameter = parameter
        self.was_there = before is not None
        self.meta: Any = None
        #: What was used, so that it is known among what the function takes.
        self.before = None
        if before is not None and recorder.number_of(before) is not None:
            self.meta, self.before = before._meta, before
        self.is_replaced = after is not before
        self.number = None
        if self.is_replaced and after is not None:
            self.number = recorder.number_of(after)

    @property
    def holds(self) -> bool:
        """Whether the parameter has a gradient as it had one when it was recorded."""
        now: Any = self.parameter.grad
        if (now is not None) is not self.was_there:
            return False
        return self.meta is None or now._meta is self.meta


class Gradients:
    """The gradients of what a function may reach, as they are before it is called."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        each = {id(one): one for one in parameters}
        self._before = [(one, one.grad) for one in each.values()]

    def changes(self, recorder: Recorder) -> Sequence[Gradient]:
        """Gives what has become of those that the function has used or replaced."""
        made = [Gradient(parameter, before, recorder) for parameter, before in self._before]
        # What held the gradients from before would keep them for as long as the trace.
        self._before = []
        return [one for one in made if one.is_replaced or one.meta is not None]
