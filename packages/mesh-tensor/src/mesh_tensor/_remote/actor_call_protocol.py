"""Data types that both sides of a call of an actor with tensors share."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ActorCallRequest", "ActorCallToken"]


@dataclass(frozen=True)
class ActorCallToken:
    """The argument that an actor receives instead of the real arguments.

    Attributes:
        token: Identifies the call.
        is_kept: Whether the results of the method stay in its process.
    """

    token: str
    is_kept: bool


@dataclass(frozen=True)
class ActorCallRequest:
    """The data of a call that is sent with the instruction stream, in addition to the tensors.

    Attributes:
        token: Identifies the call.
        port: The port of the actors.
        blob: The pickled arguments, with placeholders for slots.
    """

    token: str
    port: int
    blob: bytes
