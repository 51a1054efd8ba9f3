"""Sessions: calls that all go to the same replica."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from mesh_core._services.handle import ServiceHandle
    from mesh_core._services.replica_state import Place

__all__ = ["Binding", "Session"]

A = TypeVar("A")


class Binding:
    """The replica of a session.

    Attributes:
        place: The replica; None before the first call and after a move.
        is_strict: Whether a move raises an error.
    """

    __slots__ = ("is_strict", "place")

    def __init__(self, is_strict: bool) -> None:
        self.place: Place | None = None
        self.is_strict: bool = is_strict


class Session(Generic[A]):
    """Calls that all go to the same replica, which can therefore keep state between them.

    Use it as `async with service.session() as s` or `with ...`; `s` is a handle. The first call
    selects a replica with few sessions and little load. If the replica is gone because it died or
    the service shrank, one call raises `SessionMoved`, and the next call goes to another replica.
    """

    def __init__(self, handle: ServiceHandle, on_move: str) -> None:
        if on_move not in ("raise", "ignore"):
            raise ValueError(f"on_move {on_move!r} is neither 'raise' nor 'ignore'")
        self._binding = Binding(on_move == "raise")
        self._router = handle._router
        self._handle: Any = handle._bound(self._binding)

    @property
    def replica(self) -> int | None:
        """The number of the session's replica; None before the first call and after a move."""
        place = self._binding.place
        return None if place is None else place.id

    def __enter__(self) -> A:
        self._router.session_began(1)
        return self._handle  # type: ignore[no-any-return]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._router.unbind(self._binding)
        self._router.session_began(-1)

    async def __aenter__(self) -> A:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a session cannot be sent to another process: send the service, or its handle"
        )
