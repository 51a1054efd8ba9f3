"""Replies to calls, combined with a check of the values that the calls used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mesh_core import Future
    from mesh_tensor._engine.engine import Engine
    from mesh_tensor._tensor.ref import Ref

__all__ = ["CheckedCompletion", "DependentCompletion"]


class DependentCompletion:
    """A result that is known once a reply has arrived; a `mesh_core.spi.Completion`.

    Args:
        answer: The future of the reply.
    """

    def __init__(self, answer: Future[Any]) -> None:
        self._answer = answer

    def wait(self, timeout: float | None) -> bool:
        """Wait for the reply; return whether it has arrived."""
        try:
            self._answer.exception(timeout)
        except TimeoutError:
            return self._answer.done()
        return True

    def is_done(self) -> bool:
        """Return whether the reply has arrived."""
        return self._answer.done()

    def outcome(self) -> Any:
        """Return the result, or raise its error."""
        raise NotImplementedError

    def cancel(self) -> bool:
        """Cancel the call."""
        return self._answer.cancel()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once the reply has arrived."""
        self._answer.add_done_callback(lambda _: callback())


class CheckedCompletion(DependentCompletion):
    """The reply of processes to a call that uses tensors.

    Args:
        engine: The engine of the tensors.
        refs: The tensors. They are kept alive until the reply has arrived.
        answer: The future of the reply.
        on_failure: Called when the call turns out to have failed, and when it is cancelled.
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
        """Return the reply.

        Raises:
            OpFailed: A value that the call used has failed.
        """
        if self._on_failure is not None and self._answer.exception() is not None:
            self._on_failure()
        for ref in self._refs:
            self._engine.check(ref)
        return self._answer.get()

    def cancel(self) -> bool:
        """Cancel the call."""
        is_cancelled = super().cancel()
        if self._on_failure is not None:
            self._on_failure()
        return is_cancelled
