"""Gradients that accumulate in parameters while a trace is recorded or replayed.

The gradient of a parameter is an attribute of an object in the program, while a trace contains only
values. The changes of each parameter's gradient are therefore recorded, and repeated at each
replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh_tensor._tensor.tensor import Tensor
    from mesh_tensor._trace.recorder import Recorder

__all__ = ["Gradient", "Gradients"]


class Gradient:
    """The effect of a function on the gradient of one parameter.

    Attributes:
        parameter: The parameter.
        was_there: Whether the parameter had a gradient before the call.
        meta: The metadata of that gradient, if the function uses it.
        is_replaced: Whether the parameter has another gradient, or none, after the call.
        number: The number of the new gradient in the trace; None if there is none.
    """

    def __init__(self, parameter: Tensor, before: Any, recorder: Recorder) -> None:
        after: Any = parameter.grad
        self.parameter = parameter
        self.was_there = before is not None
        self.meta: Any = None
        #: The gradient that was used, so that it can be identified among the inputs.
        self.before = None
        if before is not None and recorder.number_of(before) is not None:
            self.meta, self.before = before._meta, before
        self.is_replaced = after is not before
        self.number = None
        if self.is_replaced and after is not None:
            self.number = recorder.number_of(after)

    @property
    def holds(self) -> bool:
        """Whether the gradient's presence and kind are the same as when it was recorded."""
        now: Any = self.parameter.grad
        if (now is not None) is not self.was_there:
            return False
        return self.meta is None or now._meta is self.meta


class Gradients:
    """The gradients of all parameters that a function may reach, as they are before the call."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        each = {id(one): one for one in parameters}
        self._before = [(one, one.grad) for one in each.values()]

    def changes(self, recorder: Recorder) -> Sequence[Gradient]:
        """Return the changes of all gradients that the function has used or replaced."""
        made = [Gradient(parameter, before, recorder) for parameter, before in self._before]
        # Otherwise, the old gradients would be kept alive as long as the trace.
        self._before = []
        return [one for one in made if one.is_replaced or one.meta is not None]
