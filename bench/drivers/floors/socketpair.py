"""Forked workers, each behind a blocking socketpair: the floor of every call."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from bench.drivers.driver import Driver, Pending
from bench.drivers.floors.pickled_socket import PickledSocket


class _Eof:
    """Waits for a worker that will not reply."""

    def __init__(self, sock: PickledSocket) -> None:
        self._sock = sock

    def get(self, timeout: float | None = None) -> Any:
        return self._sock.recv()


class SocketpairDriver(Driver):
    """A worker is a fork that reads a request, replies to it, and does nothing else."""

    name = "floor_socketpair"

    def start(self, workers: int, kind: str = "blocking") -> None:
        self._sockets: list[PickledSocket] = []
        self._pids: list[int] = []
        self._between = socket.socketpair()
        for rank in range(workers):
            self._fork(rank)
        for sock in self._sockets:
            sock.send(("noop", 0))
            sock.recv()
        self._first = self._sockets[0]

    def stop(self) -> None:
        for sock in self._sockets:
            sock.close()
        for end in self._between:
            end.close()
        for pid in self._pids:
            os.waitpid(pid, 0)

    def pids(self) -> list[int]:
        return list(self._pids)

    def call(self, x: int) -> int:
        self._first.send(("noop", x))
        answer: int = self._first.recv()
        return answer

    def call_all(self, x: int) -> list[int]:
        for sock in self._sockets:
            sock.send(("noop", x))
        return [sock.recv() for sock in self._sockets]

    def pipelined(self, n: int) -> None:
        self._first.send(("stream", n))
        self._first.recv()

        def write() -> None:
            for i in range(n):
                self._first.send(("noop", i))

        writer = threading.Thread(target=write)
        writer.start()
        for _ in range(n):
            self._first.recv_plain()
        writer.join()

    def one_way(self, n: int) -> None:
        self._first.send(("drain", n))
        self._first.recv()
        for i in range(n):
            self._first.send(("noop", i))
        self._first.recv()

    def worker_to_worker(self, n: int) -> list[float]:
        self._sockets[1].send(("serve_other", n))
        self._sockets[0].send(("call_other", n))
        times: list[float] = self._sockets[0].recv()
        self._sockets[1].recv()
        return times

    def echo(self, x: Any) -> Any:
        self._first.send(("echo", x))
        return self._first.recv()

    def hang(self, rank: int, path: str) -> Pending:
        self._sockets[rank].send(("hang", path))
        return _Eof(self._sockets[rank])

    def _fork(self, rank: int) -> None:
        mine, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            # A copy of another worker's socket would prevent EOF on it.
            mine.close()
            for sock in self._sockets:
                sock.close()
            self._between[1 - rank % 2].close()
            _serve(PickledSocket(theirs), PickledSocket(self._between[rank % 2]))
        theirs.close()
        self._sockets.append(PickledSocket(mine))
        self._pids.append(pid)


def _serve(sock: PickledSocket, between: PickledSocket) -> NoReturn:
    commands: dict[str, Callable[[PickledSocket, PickledSocket, Any], None]] = {
        "noop": lambda sock, between, x: sock.send(x),
        "echo": lambda sock, between, x: sock.send(x),
        "stream": _stream,
        "drain": _drain,
        "serve_other": _serve_other,
        "call_other": _call_other,
        "hang": _hang,
    }
    try:
        while True:
            command, x = sock.recv()
            commands[command](sock, between, x)
    except EOFError:
        os._exit(0)
    finally:
        # The fork must never continue as a second client.
        os._exit(1)


def _stream(sock: PickledSocket, between: PickledSocket, n: int) -> None:
    sock.send("ready")
    for _ in range(n):
        sock.send(sock.recv_plain()[1])


def _drain(sock: PickledSocket, between: PickledSocket, n: int) -> None:
    sock.send("ready")
    for _ in range(n):
        sock.recv_plain()
    sock.send(n)


def _serve_other(sock: PickledSocket, between: PickledSocket, n: int) -> None:
    for _ in range(n):
        between.send(between.recv()[1])
    sock.send(n)


def _call_other(sock: PickledSocket, between: PickledSocket, n: int) -> None:
    times = []
    for i in range(n):
        started = time.perf_counter()
        between.send(("noop", i))
        between.recv()
        times.append(time.perf_counter() - started)
    sock.send(times)


def _hang(sock: PickledSocket, between: PickledSocket, path: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, b"x")
    os.close(fd)
    time.sleep(600)


def driver() -> Driver:
    """Return the driver of this floor."""
    return SocketpairDriver()
