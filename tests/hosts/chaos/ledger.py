"""Bookkeeping of the outcome of every call."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Balance:
    """The totals of a run."""

    sent: int
    answered: int
    failed: Mapping[str, int]
    """Calls that ended with an error, by its type."""
    untyped: Mapping[str, int]
    """Calls that ended with an error that is not a typed error for callers."""
    hung: int
    """Calls that had not ended long after all faults were healed."""
    lost: int
    """Calls that received a reply although they were not executed."""
    duplicated: int
    """Calls that were executed more than once."""
    invented: int
    """Calls that were executed although no client made them."""

    @property
    def is_right(self) -> bool:
        """Whether every call was executed at most once and ended with a reply or a typed error."""
        wrong = self.hung + self.lost + self.duplicated + self.invented
        return wrong == 0 and not self.untyped

    def __str__(self) -> str:
        lines = [
            f"sent        {self.sent:>9}",
            f"answered    {self.answered:>9}",
            f"failed      {sum(self.failed.values()):>9}{_by_type(self.failed)}",
            f"untyped     {sum(self.untyped.values()):>9}{_by_type(self.untyped)}",
            f"hung        {self.hung:>9}",
            f"lost        {self.lost:>9}",
            f"duplicated  {self.duplicated:>9}",
            f"invented    {self.invented:>9}",
        ]
        return "\n".join(lines)


@dataclass
class Ledger:
    """A thread-safe record of all calls."""

    _sent: int = 0
    _pending: set[int] = field(default_factory=set)
    _answered: set[int] = field(default_factory=set)
    _failed: Counter[str] = field(default_factory=Counter)
    _untyped: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self) -> int:
        """Open the next call and return its number."""
        with self._lock:
            self._sent += 1
            self._pending.add(self._sent)
            return self._sent

    def answer(self, number: int) -> None:
        """Close a call that received a reply."""
        with self._lock:
            self._pending.remove(number)
            self._answered.add(number)

    def fail(self, number: int, kind: str, *, is_typed: bool) -> None:
        """Close a call that ended with an error."""
        with self._lock:
            self._pending.remove(number)
            (self._failed if is_typed else self._untyped)[kind] += 1

    def balance(self, executions: Mapping[int, int]) -> Balance:
        """Compute the totals, after the last call that can still end has ended."""
        with self._lock:
            return Balance(
                sent=self._sent,
                answered=len(self._answered),
                failed=dict(self._failed),
                untyped=dict(self._untyped),
                hung=len(self._pending),
                lost=sum(number not in executions for number in self._answered),
                duplicated=sum(times > 1 for times in executions.values()),
                invented=sum(not 0 < number <= self._sent for number in executions),
            )


def _by_type(counts: Mapping[str, int]) -> str:
    if not counts:
        return ""
    return "   " + ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
