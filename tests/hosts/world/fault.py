"""One thing that is wrong, until it is healed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class Fault:
    """In force from when it is made until `heal`, or to the end of a `with` block."""

    def __init__(self, name: str, heal: Callable[[], None]) -> None:
        """Names what has just gone wrong, and says how it is undone."""
        self.name = name
        self._heal: Callable[[], None] | None = heal
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Fault({self.name})"

    @property
    def is_healed(self) -> bool:
        """Whether it is over."""
        return self._heal is None

    def heal(self) -> None:
        """Undoes it; a second time does nothing."""
        with self._lock:
            heal, self._heal = self._heal, None
        if heal is not None:
            heal()

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.heal()
