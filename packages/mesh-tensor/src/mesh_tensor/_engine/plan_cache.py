"""The plans that the program has use for: by what is asked, and by number.

There is a bound, so that a program whose shapes change at each step does not keep more and more
of them. Beyond it the older half is let go of: whatever of that is asked for again is worked out
again. A plan is forgotten, here and in the processes, when nobody holds its `Issue` any more and
all that was issued with it is done.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

from mesh_tensor._dispatch.fake_propagation import New
from mesh_tensor._engine.plan import Forget, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_tensor._engine.op_stream import OpStream
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._simulator.simulated_engine import Simulated
    from mesh_tensor._tensor.meta import Meta

__all__ = ["Issue", "PlanCache"]

#: How many plans are kept.
_PLANS_MAX = 4096


class Issue:
    """A plan as the controller uses it: its number, and what becomes of the results.

    Attributes:
        number: What the plan is called in the words.
        reshaped: Operands whose shape it changes: what they are then, and whose storage they have.
        is_scalar: Whether all that it takes and gives are scalars, which the program may know.
        parts: What it returns; see `Outcome`.
        meta: The one new tensor that it gives, if that is all.
        aliased: The operand whose storage that has.
    """

    __slots__ = ("_retired", "aliased", "is_scalar", "meta", "number", "parts", "reshaped")

    def __init__(self, number: int, parts: Any, retired: list[int]) -> None:
        self.number = number
        self.reshaped: Sequence[tuple[int, Meta, int | None]] = ()
        self.is_scalar: bool | None = None
        self._retired = retired
        self.learn(parts)

    def learn(self, parts: Any) -> None:
        """Notes what it returns."""
        self.parts = parts
        is_single = type(parts) is New
        self.meta: Meta | None = parts.meta if is_single else None
        self.aliased: int | None = parts.aliased if is_single else None

    def __del__(self) -> None:
        self._retired.append(self.number)


class PlanCache:
    """The plans of one engine.

    Args:
        stream: What they are sent by.
        simulated: Who is to know as well what they give, where no process finds out.
    """

    def __init__(self, stream: OpStream, simulated: Simulated | None = None) -> None:
        self._stream = stream
        self._simulated = simulated
        #: By what is asked.
        self.issues: dict[tuple[Any, ...], Issue] = {}
        #: By number.
        self.plans: dict[int, Plan] = {}
        self._numbers = itertools.count(1)
        #: Numbers that nobody can issue any more; finalizers append to it, at any time.
        self._retired: list[int] = []
        #: Those that the processes were told to forget, and how much had been issued by then.
        self._leaving: deque[tuple[int, list[int]]] = deque()

    def define(
        self, key: tuple[Any, ...] | None, mesh: DeviceMesh, parts: Any, **plan: Any
    ) -> Issue:
        """Adds a plan.

        Raises:
            MeshError: The processes are gone.
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
        """Has the processes forget what nobody can issue; the lock is held."""
        while self._leaving and self._leaving[0][0] <= self._stream.done:
            for number in self._leaving.popleft()[1]:
                self.plans.pop(number, None)
        if len(self._retired) < _PLANS_MAX // 8:
            return
        # What has been issued with them is in the batches before.
        self._stream.flush()
        count = len(self._retired)
        numbers = self._retired[:count]
        del self._retired[:count]
        self._stream.define(Forget(tuple(numbers)))
        self._leaving.append((self._stream.issued, numbers))
