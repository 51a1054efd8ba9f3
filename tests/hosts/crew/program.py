"""A program on a host, as the test sees it that tells it what to do."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from tests.hosts.world import Host
from tools.workspace import ROOT

P = ParamSpec("P")
T = TypeVar("T")

#: Longer than any step takes that is not told to take longer, also on a busy machine.
LIMIT_S = 60.0


class ProgramGone(RuntimeError):
    """The program has ended, and the step with it."""


class Program:
    """Runs until `end`, `kill`, or the end of the `with` block.

    with Program(world["client"]) as program:
        counting = program.begin(count_to, 1000)        # functions of a module
        ...
        assert counting.result() == 1000
    """

    def __init__(self, host: Host, env: Mapping[str, str] | None = None) -> None:
        """Starts it."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = host.popen(
                [sys.executable, "-m", "tests.hosts.crew.stage"],
                stdin=theirs.fileno(),
                cwd=ROOT,
                env=env,
            )
        self._socket = Connection(ours.detach())
        self._pending: dict[int, Future[Any]] = {}
        self._last = 0
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def begin(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begins a step, which runs beside others.

        Raises:
            ProgramGone: As the result, when the program ends before the step does.
        """
        assert not kwargs, "steps take their arguments by place"
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()
        with self._lock:
            self._last += 1
            number = self._last
            self._pending[number] = done
            try:
                self._socket.send((number, pickle.dumps((step, args))))
            except OSError:
                self._pending.pop(number, done).set_exception(ProgramGone("before the step"))
        return done

    def do(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Does a step to its end, and returns its result or raises what it raised."""
        return self.begin(step, *args, **kwargs).result(LIMIT_S)

    def end(self, limit_s: float = LIMIT_S) -> int:
        """Lets it come to its end; returns its exit status.

        Raises:
            subprocess.TimeoutExpired: It did not end in time.
        """
        with self._lock:
            try:
                self._socket.send(None)  # no more steps
            except OSError:
                pass  # it has ended, or the end was said before
        return self.process.wait(limit_s)

    def kill(self) -> None:
        """Ends it without a warning, and waits until it has."""
        self.process.kill()
        self.process.wait(LIMIT_S)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.end()
        except subprocess.TimeoutExpired:
            if error is None:
                raise
        finally:
            self.process.release()
            self._reader.join(LIMIT_S)
            self._socket.close()

    def _read(self) -> None:
        while True:
            try:
                number, is_done, *what = pickle.loads(self._socket.recv_bytes())
            except (EOFError, OSError):
                break
            with self._lock:
                pending = self._pending.pop(number)
            if is_done:
                pending.set_result(what[0])
            else:
                what[0].add_note(f"in the program:\n{what[1]}")
                pending.set_exception(what[0])
        with self._lock:
            left, self._pending = self._pending, {}
        for pending in left.values():
            pending.set_exception(ProgramGone("during the step"))
