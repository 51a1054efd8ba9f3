"""Locks whose waits are waits in a simulation.

Only one thread of a simulation runs at a time, and it continues until it waits. A free lock is
therefore acquired by setting a field. Conditions, events, semaphores and queues of the standard
library are built on these two classes.
"""

from __future__ import annotations

from _thread import get_ident
from collections import deque

from mesh_core._simulation.scheduler import NS, running_thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._simulation.scheduler import SimulatedThread

__all__ = ["SimulatedLock", "SimulatedRLock"]


class _Turn:
    """A thread that waits for a lock and gets it from the thread that releases it."""

    __slots__ = ("is_granted", "thread")

    def __init__(self, thread: SimulatedThread) -> None:
        self.thread = thread
        self.is_granted = False


class SimulatedLock:
    """Replaces `threading.Lock`."""

    def __init__(self) -> None:
        self._is_locked = False
        self._turns: deque[_Turn] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; return whether it was acquired."""
        if not self._is_locked:
            self._is_locked = True
            return True
        return blocking and self._wait(timeout)

    def release(self) -> None:
        """Release the lock, and pass it to the next thread that waits for it.

        Raises:
            RuntimeError: The lock is not held.
        """
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        if self._turns:
            turn = self._turns.popleft()
            turn.is_granted = True
            turn.thread.scheduler.wake(turn.thread)
        else:
            self._is_locked = False

    def locked(self) -> bool:
        """Return whether a thread holds the lock."""
        return self._is_locked

    def _wait(self, timeout: float) -> bool:
        thread = running_thread()
        if thread is None:
            raise RuntimeError("a lock of a simulation is in use: its simulation is over")
        scheduler = thread.scheduler
        until_ns = None if timeout < 0 else scheduler.native.now_ns() + int(timeout * NS)
        turn = _Turn(thread)
        self._turns.append(turn)
        try:
            while not turn.is_granted:
                if until_ns is not None and scheduler.native.now_ns() >= until_ns:
                    break
                scheduler.wait(until_ns)
        except BaseException:
            if turn.is_granted:
                self.release()
            else:
                self._turns.remove(turn)
            raise
        if not turn.is_granted:
            self._turns.remove(turn)
        return turn.is_granted

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


class SimulatedRLock:
    """Replaces `threading.RLock`."""

    def __init__(self) -> None:
        self._lock = SimulatedLock()
        self._owner = 0
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock, which its owner may acquire again; return whether it was acquired."""
        me = get_ident()
        if self._owner == me:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        """Release the lock once.

        Raises:
            RuntimeError: Another thread holds the lock, or the lock is free.
        """
        if self._owner != get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = 0
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    # `threading.Condition` uses the following methods.

    def _is_owned(self) -> bool:
        return self._owner == get_ident()

    def _release_save(self) -> tuple[int, int]:
        saved = self._count, self._owner
        self._count, self._owner = 0, 0
        self._lock.release()
        return saved

    def _acquire_restore(self, saved: tuple[int, int]) -> None:
        self._lock.acquire()
        self._count, self._owner = saved

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]
