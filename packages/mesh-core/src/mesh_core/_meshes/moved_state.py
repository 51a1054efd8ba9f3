"""Descriptions of the processes of a host that moves to another machine.

The large parts of their state are not in these: they are read and written in pieces.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._meshes.start_request import StartRequest

__all__ = ["ActorState", "ClosedActor", "ProcState"]


class ActorState(NamedTuple):
    """One actor of a process that moves."""

    port: int
    """The port of its mesh."""
    rank: int
    """Its rank in the mesh."""
    window: int
    """The maximum number of outstanding messages per sender."""
    body: bytes
    """The pickled spawn request, which contains the instance."""
    sizes: Sequence[int]
    """The size of each large part of the instance, in bytes."""


class ClosedActor(NamedTuple):
    """One actor that has ended in a process that moves."""

    port: int
    """The port of its mesh."""
    code: int
    """The fault code that callers of the actor get."""
    detail: bytes
    """The encoded failure that they get."""


class ProcState(NamedTuple):
    """One process with its actors."""

    slot: int
    """The slot of the process on its host."""
    request: StartRequest
    """The request that started its mesh."""
    actors: Sequence[ActorState]
    """The actors, in the order in which they were spawned."""
    closed: Sequence[ClosedActor]
    """The actors that have ended."""
