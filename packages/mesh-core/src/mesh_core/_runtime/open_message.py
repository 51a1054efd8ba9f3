"""A message whose large buffers are open, so that more than one reader can use them."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from mesh_core._core import Engine, Message

__all__ = ["OpenMessage"]


class OpenMessage:
    """The content of a message, with the attributes of `Message` that its readers use.

    Attributes:
        opened: The large buffers, in order.
    """

    __slots__ = (
        "body",
        "code",
        "from_port",
        "from_proc",
        "kind",
        "meta",
        "opened",
        "rank",
        "to_port",
    )

    has_parts = True

    def __init__(
        self,
        *,
        body: bytes,
        opened: Sequence[Buffer],
        code: int = 0,
        rank: int = 0,
        from_proc: int = 0,
        from_port: int = 0,
        to_port: int = 0,
        kind: int = 0,
        meta: bytes = b"",
    ) -> None:
        self.body: bytes = body
        self.opened: Sequence[Buffer] = opened
        self.code: int = code
        self.rank: int = rank
        self.from_proc: int = from_proc
        self.from_port: int = from_port
        self.to_port: int = to_port
        self.kind: int = kind
        self.meta: bytes = meta

    @classmethod
    def of(cls, message: Message, engine: Engine) -> OpenMessage:
        """Open the buffers of a message, which can be opened only once."""
        return cls(
            body=message.body,
            opened=engine.buffers(message),
            code=message.code,
            rank=message.rank,
            from_proc=message.from_proc,
            from_port=message.from_port,
            to_port=message.to_port,
            kind=message.kind,
            meta=message.meta,
        )
