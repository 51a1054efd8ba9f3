"""Questions that other processes ask this one about its memory, and who answers them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mesh_rdma import _core
from mesh_rdma._errors import RDMATransportError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["answer", "serve_questions"]

_answerers: dict[str, Callable[[bytes], bytes]] = {}
_late: list[Callable[[str], Callable[[bytes], bytes] | None]] = []


def answer(name: str, answerer: Callable[[bytes], bytes]) -> None:
    """Has questions to `name` answered by a function, in a thread of the one who asks.

    Others ask with `Handle.exchange(name, question, timeout)`; what the function raises they get as
    the text of an `RDMATransportError`. Questions come from whoever has a handle of a buffer of
    this process: they are bytes of a fixed layout, and never pickles.
    """
    _answerers[name] = answerer


def answer_late(find: Callable[[str], Callable[[bytes], bytes] | None]) -> None:
    """Has a function asked for the answerer of a name that nobody has given yet."""
    _late.append(find)


def serve_questions() -> None:
    """Begins to answer; called when the first handle is made."""
    _core.answer_with(_dispatch)


def _dispatch(name: str, question: bytes) -> bytes:
    found = _answerers.get(name)
    if found is None:
        found = next((one for find in _late if (one := find(name)) is not None), None)
    if found is None:
        raise RDMATransportError(f"this process has no {name!r}: install what brings it here too")
    return found(question)
