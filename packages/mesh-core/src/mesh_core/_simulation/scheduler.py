"""Runs the threads of a simulation one at a time, in the order of virtual time.

Each simulated thread is a thread of the operating system that runs only while all others wait. A
thread that waits takes the next event of the simulation and resumes the thread that the event
wakes. Only the order of events, which the seed determines, decides which thread runs.
"""

from __future__ import annotations

import select
from _thread import LockType, allocate_lock, get_ident, start_new_thread
from contextlib import suppress

from mesh_core._core import Simulation
from mesh_core._simulation.errors import Abandoned, SimulationStuck
from mesh_core._simulation.stacks import waiting_places

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class _Process(Protocol):
        life: int

        def activate(self) -> None: ...


__all__ = ["NS", "Scheduler", "SimulatedThread", "running_thread"]

# Nanoseconds of a second.
NS = 1_000_000_000
# How long the program waits for its turn after a signal, such as the signal of a test's time limit,
# in real seconds.
_TURN_S = 5.0
# A thread that catches every exception and waits again is left behind after this many attempts.
_REFUSALS_MAX = 100


class SimulatedThread:
    """A thread of a simulated process.

    Attributes:
        number: Its number in the simulation.
        process: The process that it belongs to.
        name: Its name in reports.
        ident: The identifier of the thread of the operating system; 0 before it runs.
        error: The exception that its current or next wait raises.
        is_finished: Whether its function has ended.
    """

    __slots__ = (
        "error",
        "go",
        "ident",
        "is_finished",
        "joining",
        "name",
        "number",
        "process",
        "refusals",
        "scheduler",
    )

    def __init__(self, scheduler: Scheduler, number: int, process: _Process, name: str) -> None:
        self.scheduler: Scheduler = scheduler
        self.number: int = number
        self.process: _Process = process
        self.name: str = name
        self.ident: int = 0
        self.error: BaseException | None = None
        self.is_finished: bool = False
        self.refusals: int = 0
        self.joining: list[SimulatedThread] = []
        self.go: LockType = allocate_lock()
        self.go.acquire()


_by_ident: dict[int, SimulatedThread] = {}


def running_thread() -> SimulatedThread | None:
    """Return the simulated thread that runs this code; None outside of simulations."""
    return _by_ident.get(get_ident())


class Scheduler:
    """The threads and timers of a simulation.

    Args:
        seed: Determines the order of events.
        limit_s: The virtual time after which the simulation counts as stuck, in seconds.

    Attributes:
        native: The nodes, network and clock of the simulation.
        main: The thread of the program.
        current: The thread that runs.
        is_closing: Whether all threads but the main one end.
    """

    main: SimulatedThread
    current: SimulatedThread
    # The thread that may run. It is set last, when everything else is as that thread expects it.
    _turn: SimulatedThread

    def __init__(self, seed: int, limit_s: float) -> None:
        self.native: Simulation = Simulation(seed, self.wait)
        self._threads: dict[int, SimulatedThread] = {}
        self._timers: dict[int, Callable[[], object]] = {}
        self._timer_count = 0
        self._limit_s = limit_s
        self.is_closing: bool = False
        # A thread runs code that never waits, so it cannot be ended.
        self._is_lost = False
        self._descriptors = select.epoll()
        self._by_descriptor: dict[int, SimulatedThread] = {}

    def start(self, process: _Process) -> None:
        """Make the calling thread the main thread of a process."""
        self.main = self._add(process, "main")
        self.main.ident = get_ident()
        _by_ident[self.main.ident] = self.main
        self._resume(self.main)
        self._turn = self.main
        self.after(self._limit_s, self._give_up)

    def spawn(
        self, process: _Process, function: Callable[[], object], name: str
    ) -> SimulatedThread:
        """Start a thread of a process; it runs when this one waits."""
        thread = self._add(process, name)
        start_new_thread(self._run, (thread, function))
        self.native.wake(thread.number)
        return thread

    def after(self, delay_s: float, function: Callable[[], object]) -> None:
        """Call a function, which must not wait, after a virtual time in seconds."""
        self._timer_count += 1
        self._timers[self._timer_count] = function
        self.native.set_timer(self.native.now_ns() + int(delay_s * NS), self._timer_count)

    def wait(self, until_ns: int | None) -> None:
        """Let other threads run until this one is woken, or until a time."""
        me = running_thread()
        if me is None or me.scheduler is not self:
            raise RuntimeError("only threads of a simulation can wait for something in it")
        self._check(me)
        if self.native.begin_wait(until_ns):
            self._switch(me)
        self._check(me)

    def wait_s(self, timeout_s: float | None) -> None:
        """Like `wait`, with the longest time to wait in seconds."""
        if timeout_s is None:
            self.wait(None)
        else:
            self.wait(self.native.now_ns() + int(min(timeout_s, self._limit_s * 2) * NS))

    def wait_for_descriptor(self, descriptor: int, timeout_s: float | None) -> None:
        """Wait until a descriptor is readable, or woken for another reason."""
        self._by_descriptor[descriptor] = self.current
        self._descriptors.register(descriptor, select.EPOLLIN)
        try:
            self.wait_s(timeout_s)
        finally:
            if self._by_descriptor.pop(descriptor, None) is not None:
                self._descriptors.unregister(descriptor)

    def wake(self, thread: SimulatedThread) -> None:
        """Make a thread run soon, or make its next wait return."""
        self.native.wake(thread.number)

    def interrupt(self, thread: SimulatedThread, error: BaseException) -> None:
        """Make the current or next wait of a thread raise an exception."""
        if not isinstance(thread.error, Abandoned):
            thread.error = error
        self.native.wake(thread.number)

    def threads(self) -> list[SimulatedThread]:
        """Return the living threads."""
        return list(self._threads.values())

    def threads_of(self, process: _Process) -> list[SimulatedThread]:
        """Return the living threads of a process."""
        return [thread for thread in self._threads.values() if thread.process is process]

    def close(self) -> None:
        """End all threads but the main one; code that waits ends with `Abandoned`."""
        self.is_closing = True
        self._timers.clear()
        try:
            del self._threads[self.main.number]
            # Code that ends may start threads, which end before they run anything.
            while self._threads and not self._is_lost:
                thread = next(iter(self._threads.values()))
                thread.error = Abandoned()
                self._resume(thread)
                self._hand_over(thread, self.main)
        finally:
            _by_ident.pop(self.main.ident, None)
            self.native.close()
            self._descriptors.close()

    def _add(self, process: _Process, name: str) -> SimulatedThread:
        thread = SimulatedThread(self, self.native.add_thread(process.life), process, name)
        self._threads[thread.number] = thread
        return thread

    def _run(self, thread: SimulatedThread, function: Callable[[], object]) -> None:
        while self._turn is not thread:
            thread.go.acquire()
        thread.ident = get_ident()
        _by_ident[thread.ident] = thread
        try:
            if thread.error is None:
                function()
        except Abandoned:
            pass
        finally:
            _by_ident.pop(thread.ident, None)
            self._leave(thread)

    def _leave(self, thread: SimulatedThread) -> None:
        """Resume the next thread, because this one has ended."""
        self._threads.pop(thread.number, None)
        thread.is_finished = True
        if self._is_lost:
            return
        for other in thread.joining:
            self.native.wake(other.number)
        self._give_turn(self._next())

    def _switch(self, me: SimulatedThread) -> None:
        following = self._next()
        if following is not me:
            self._hand_over(following, me)

    def _hand_over(self, following: SimulatedThread, me: SimulatedThread) -> None:
        """Let another thread run, and wait until it is the turn of this one again.

        Raises:
            BaseException: Another thread or a signal handler has raised it in this one.
        """
        interruption: BaseException | None = None
        is_given = False
        while True:
            # An exception must not make this thread run before its turn.
            try:
                if not is_given:
                    is_given = True
                    self._give_turn(following)
                while self._turn is not me and not self._is_lost:
                    limit_s = -1 if interruption is None else _TURN_S
                    self._is_lost = not me.go.acquire(timeout=limit_s)
                break
            except BaseException as error:
                interruption = error
                if me is self.main:
                    self.native.wake(me.number)
        if interruption is not None:
            raise interruption

    def _give_turn(self, thread: SimulatedThread) -> None:
        """Let a thread run; the last thing that the current one does before it waits or ends."""
        self._turn = thread
        # The lock only wakes the thread, which may be awake already.
        with suppress(RuntimeError):
            thread.go.release()

    def _next(self) -> SimulatedThread:
        """Advance to the next event that resumes a thread, and return the thread."""
        if self.is_closing:
            self._resume(self.main)
            return self.main
        while True:
            if self._by_descriptor:
                self._look_at_descriptors()
            what, number = self.native.advance()
            if what == "thread":
                thread = self._threads.get(number)
                if thread is not None:
                    self.current = thread
                    thread.process.activate()
                    return thread
            elif what == "timer":
                timer = self._timers.pop(number, None)
                if timer is not None:
                    self._run_timer(timer)
            elif what == "idle":
                self._give_up()

    def _resume(self, thread: SimulatedThread) -> None:
        """Make a thread the current one, which does not wait for an event."""
        self.native.resume(thread.number)
        self.current = thread
        thread.process.activate()

    def _run_timer(self, timer: Callable[[], object]) -> None:
        try:
            timer()
        except Exception as error:
            self.interrupt(self.main, error)

    def _look_at_descriptors(self) -> None:
        ready = []
        for descriptor, _ in self._descriptors.poll(0):
            self._descriptors.unregister(descriptor)
            ready.append(self._by_descriptor.pop(descriptor))
        # The kernel's order must not decide.
        for thread in sorted(ready, key=lambda one: one.number):
            self.native.wake(thread.number)

    def _check(self, me: SimulatedThread) -> None:
        """Raise the exception that was requested for a thread."""
        if self._is_lost:
            raise Abandoned
        error = me.error
        if error is None:
            return
        if not isinstance(error, Abandoned):
            me.error = None
            raise error
        me.refusals += 1
        if me.refusals > _REFUSALS_MAX:
            self._leave(me)
            while True:
                me.go.acquire()
        raise error

    def _give_up(self) -> None:
        """Report to the program that it waits for something that will not happen."""
        now_s = self.native.now_ns() / NS
        places = waiting_places(list(self._threads.values()))
        self.interrupt(self.main, SimulationStuck(now_s, places))
