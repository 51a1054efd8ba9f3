"""A handle with which a test controls a program on a host."""

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

#: Exceeds the duration of every step that has no longer limit, also on a busy machine.
LIMIT_S = 60.0


class ProgramGone(RuntimeError):
    """The program has exited before the step completed."""


class Program:
    """A program that runs until `end`, `kill`, or the end of the `with` block.

    with Program(world["client"]) as program:
        counting = program.begin(count_to, 1000)        # functions of a module
        ...
        assert counting.result() == 1000
    """

    def __init__(self, host: Host, env: Mapping[str, str] | None = None) -> None:
        """Start the program."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = host.popen(
                [sys.executable, "-X", "faulthandler", "-m", "tests.hosts.cluster.stage"],
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
        """Start a step, which runs concurrently with others.

        Raises:
            ProgramGone: As the result, if the program exits before the step completes.
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
        """Run a step to completion; return its result or raise its exception."""
        return self.begin(step, *args, **kwargs).result(LIMIT_S)

    def end(self, limit_s: float = LIMIT_S) -> int:
        """Let the program exit normally and return its exit status.

        Raises:
            subprocess.TimeoutExpired: The program did not exit in time.
        """
        with self._lock:
            try:
                self._socket.send(None)  # No more steps follow.
            except OSError:
                pass  # The program has exited, or the end was sent before.
        return self.process.wait(limit_s)

    def kill(self) -> None:
        """Kill the program and wait for its exit."""
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
        if left:
            status = self.process.wait(LIMIT_S)
            for pending in left.values():
                pending.set_exception(ProgramGone(f"during the step, with status {status}"))
