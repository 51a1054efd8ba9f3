"""The plans that the program uses, by key and by number.

The cache is bounded, so that a program whose shapes change at each step does not accumulate plans.
When the limit is exceeded, the older half is evicted; an evicted plan is compiled again when it is
needed again. A plan is removed here and in the processes when nothing refers to its `Issue` any
more and all of its operations are done.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

from mesh_tensor._instructions.compiled_op import Forget, Plan
from mesh_tensor._instructions.results import NewTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._instructions.instruction_stream import OpStream
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._simulator.simulated_engine import Simulated
    from mesh_tensor._tensor.meta import Meta

__all__ = ["Issue", "PlanCache"]

#: The maximum number of cached plans.
_PLANS_MAX = 4096


class Issue:
    """A plan as the controller uses it: its number, and how to create the results.

    Attributes:
        number: The number of the plan in the words.
        reshaped: The operands whose metadata it changes: index, new metadata, and the operand whose
            storage they share then.
        is_scalar: Whether all operands and results are scalars that the program can evaluate
            itself.
        parts: The return value; see `Outcome`.
        meta: The metadata of the result, if the result is a single new tensor.
        aliased: The index of the operand whose storage this tensor shares.
    """

    __slots__ = ("_retired", "aliased", "is_scalar", "meta", "number", "parts", "reshaped")

    def __init__(self, number: int, parts: Any, retired: list[int]) -> None:
        self.number = number
        self.reshaped: Sequence[tuple[int, Meta, int | None]] = ()
        self.is_scalar: bool | None = None
        self._retired = retired
        self.learn(parts)

    def learn(self, parts: Any) -> None:
        """Set the description of the return value."""
        self.parts = parts
        is_single = type(parts) is NewTensor
        self.meta: Meta | None = parts.meta if is_single else None
        self.aliased: int | None = parts.aliased if is_single else None

    def __del__(self) -> None:
        self._retired.append(self.number)


class PlanCache:
    """The plans of one engine.

    Args:
        stream: The instruction stream that sends them.
        simulated: The simulation, if any. It is notified of each plan and determines its results,
            because no process does so.
    """

    def __init__(self, stream: OpStream, simulated: Simulated | None = None) -> None:
        self._stream = stream
        self._simulated = simulated
        #: By key.
        self.issues: dict[tuple[Any, ...], Issue] = {}
        #: By number.
        self.plans: dict[int, Plan] = {}
        self._numbers = itertools.count(1)
        #: Numbers of plans that can no longer be issued. Finalizers append to it at any time.
        self._retired: list[int] = []
        #: The plans that the processes were told to remove, and the number of operations issued by
        #: then.
        self._leaving: deque[tuple[int, list[int]]] = deque()

    def define(
        self, key: tuple[Any, ...] | None, mesh: DeviceMesh, parts: Any, **plan: Any
    ) -> Issue:
        """Add a plan.

        Raises:
            MeshError: The processes have exited.
        """
        with self._stream.lock:
            made = Plan(
                number=next(self._numbers), ranks=mesh._encoded, lane=mesh._lane.number, **plan
            )
            self.plans[made.number] = made
            self._stream.define(made)
            issue = Issue(made.number, parts, self._retired)
            if self._simulated is not None:
                self._simulated.note(made, issue)
            if key is not None:
                self.issues[key] = issue
                if len(self.issues) > _PLANS_MAX:
                    for old in list(itertools.islice(self.issues, _PLANS_MAX // 2)):
                        del self.issues[old]
            if self._retired:
                self._forget()
        return issue

    def _forget(self) -> None:
        """Remove plans that can no longer be issued, also in the processes. Requires the lock."""
        while self._leaving and self._leaving[0][0] <= self._stream.done:
            for number in self._leaving.popleft()[1]:
                self.plans.pop(number, None)
        if len(self._retired) < _PLANS_MAX // 8:
            return
        # The operations that use these plans must be in earlier batches.
        self._stream.flush()
        count = len(self._retired)
        numbers = self._retired[:count]
        del self._retired[:count]
        self._stream.define(Forget(tuple(numbers)))
        self._leaving.append((self._stream.issued, numbers))
