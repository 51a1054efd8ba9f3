"""One call of the `__supervise__` of an owner."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mesh_core._supervision.ownership import Ownership
    from mesh_core._supervision.policy import MeshFailure

__all__ = ["SuperviseCall"]


class SuperviseCall:
    """One call of the `__supervise__` of an owner."""

    def __init__(
        self, ownership: Ownership, owner: int, failure_id: int, failure: MeshFailure
    ) -> None:
        self._ownership = ownership
        self._owner = owner
        self._failure_id = failure_id
        self._failure = failure

    def run(self, supervise: Callable[[MeshFailure], object]) -> None:
        """Call a plain `__supervise__`."""
        try:
            verdict = "handled" if supervise(self._failure) else "unhandled"
        except BaseException as error:
            self._raised(error)
            return
        self._ownership.handled(self._failure_id, self._owner, verdict)

    async def run_async(self, supervise: Callable[[MeshFailure], Awaitable[object]]) -> None:
        """Call an `async` `__supervise__`."""
        try:
            verdict = "handled" if await supervise(self._failure) else "unhandled"
        except BaseException as error:
            self._raised(error)
            return
        self._ownership.handled(self._failure_id, self._owner, verdict)

    def _raised(self, error: BaseException) -> None:
        if error.__cause__ is None:
            error.__cause__ = self._failure.error
        self._ownership.raised(self._failure_id, self._owner, error)
