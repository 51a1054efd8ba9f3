"""Reads of an actor from its context, which a recording keeps and a replay returns again."""

from __future__ import annotations

from typing import Any, Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ContextReader"]


class ContextReader(Protocol):
    """Intercepts the reads of an actor from its context."""

    def read(self, number: int, source: str, key: str, produce: Callable[[], Any]) -> Any:
        """Return a value that the actor reads.

        Args:
            number: The number of the message that the actor serves.
            source: The source of the value: `time`, `random` or `environ`.
            key: The name of the value.
            produce: Returns the value, which JSON can express.
        """
