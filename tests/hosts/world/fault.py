"""A fault that is active until it is healed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType


class Fault:
    """Active from its creation until `heal`, or until the end of a `with` block."""

    def __init__(self, name: str, heal: Callable[[], None]) -> None:
        """Create an active fault from its name and the function that heals it."""
        self.name = name
        self._heal: Callable[[], None] | None = heal
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Fault({self.name})"

    @property
    def is_healed(self) -> bool:
        """Whether the fault has been healed."""
        return self._heal is None

    def heal(self) -> None:
        """Heal the fault; later calls have no effect."""
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
