"""The answer to a call, behind the question whether what it was made of was good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core import Future
    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._tensor.ref import Ref

__all__ = ["CheckedCompletion", "DependentCompletion"]


class DependentCompletion:
    """Something that is known once an answer has come: a `mesh_core.spi.Completion`.

    Args:
        answer: The answer as it comes.
    """

    def __init__(self, answer: Future[Any]) -> None:
        self._answer = answer

    def wait(self, timeout: float | None) -> bool:
        """Waits; says whether it has come."""
        try:
            self._answer.exception(timeout)
        except TimeoutError:
            return self._answer.done()
        return True

    def is_done(self) -> bool:
        """Says whether it has come."""
        return self._answer.done()

    def outcome(self) -> Any:
        """Gives what is known then, or raises it."""
        raise NotImplementedError

    def cancel(self) -> bool:
        """Gives the call up."""
        return self._answer.cancel()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Calls back once it has come."""
        self._answer.add_done_callback(lambda _: callback())


class CheckedCompletion(DependentCompletion):
    """What processes return of values that they have.

    Args:
        engine: Whose values.
        refs: Which, held until the answer is there.
        answer: The answer as it comes.
        on_failure: Called when it is seen that there is none.
    """

    def __init__(
        self,
        engine: Engine,
        refs: Sequence[Ref],
        answer: Future[Any],
        on_failure: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(answer)
        self._on_failure = on_failure
        self._engine = engine
        self._refs = list(refs)

    def outcome(self) -> Any:
        """Gives it.

        Raises:
            OpFailed: Something that it was made of has failed.
        """
        if self._on_failure is not None and self._answer.exception() is not None:
            self._on_failure()
        for ref in self._refs:
            self._engine.check(ref)
        return self._answer.get()

    def cancel(self) -> bool:
        """Gives the call up."""
        is_given_up = super().cancel()
        if self._on_failure is not None:
            self._on_failure()
        return is_given_up
