"""Socket in the folder of a process through which the telemetry process of its host queries it.

A request is a name, optionally a space and an argument, and a line feed. The reply is JSON until
the end of the connection. Requests are not Mesh messages and therefore appear in no table.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

from mesh_core.spi import current_process
from mesh_telemetry._events.task_stacks import running_loops, task_stacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType
    from typing import Any

    Stack = tuple[str, int, str | None, int | None, list[tuple[str, str, int]]]

__all__ = [
    "ACTIVITY",
    "FLUSH",
    "ROWS",
    "RULES",
    "SESSIONS",
    "STACKS",
    "STATE",
    "STOP",
    "WAITS",
    "ProcessSocket",
    "activities",
    "request_all",
    "short_socket_path",
    "stacks",
    "state",
    "waits",
]

ACTIVITY, FLUSH, ROWS, STACKS = "activity", "flush", "rows", "stacks"
STATE, STOP, WAITS = "state", "stop", "waits"
SESSIONS, RULES = "debug_sessions", "on_failure"
_NAME = "socket"
_REQUEST_LEN_MAX = 256
_FRAMES_MAX = 128
# A client that neither sends nor reads must not block recording for longer.
_CLIENT_TIMEOUT_S = 0.5
_REPLY_LEN = 1 << 16
_TRUE = b"true"


class ProcessSocket:
    """The server side of the socket.

    Args:
        folder: The folder of the process.
        handlers: Handlers by the name of the request. A handler is called with the argument of the
            request, if it has one.
        slow_handlers: The same for handlers that run code of other packages. They run in separate
            threads, one at a time.
    """

    def __init__(
        self,
        folder: Path,
        handlers: Mapping[str, Callable[..., Any]],
        slow_handlers: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._handlers = handlers
        self._slow_handlers = slow_handlers
        self._slow_lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        with short_socket_path(folder, _NAME) as path:
            self._socket.bind(path)
        self._socket.listen(64)

    def fileno(self) -> int:
        """Return the file descriptor to wait on."""
        return self._socket.fileno()

    def serve(self) -> None:
        """Serve all pending requests without waiting for further ones."""
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            with suppress(OSError):
                client.settimeout(_CLIENT_TIMEOUT_S)
                text = client.recv(_REQUEST_LEN_MAX).decode(errors="replace").strip()
                request, _, argument = text.partition(" ")
                handler = self._handlers.get(request) or self._slow_handlers.get(request)
                if handler is not None and argument:
                    handler = partial(handler, argument)
                if handler is not None and request in self._slow_handlers:
                    threading.Thread(
                        target=self._reply_in_thread,
                        args=(client, handler),
                        name="mesh-telemetry-rows",
                        daemon=True,
                    ).start()
                    continue
                if handler is not None:
                    client.sendall(json.dumps(handler()).encode())
            client.close()

    def _reply_in_thread(self, client: socket.socket, handler: Callable[[], Any]) -> None:
        # If another request is still being served, this one gets no reply: a handler that
        # hangs must not accumulate waiting threads.
        with client, suppress(OSError):
            if self._slow_lock.acquire(timeout=_CLIENT_TIMEOUT_S):
                try:
                    client.sendall(json.dumps(handler(), default=str).encode())
                finally:
                    self._slow_lock.release()

    def close(self) -> None:
        """Close the socket; safe to call in a forked process."""
        self._socket.close()


def activities() -> list[tuple[Any, ...]]:
    """Return what the actors of this process do, as reported by `current_process.activity`."""
    return [tuple(one) for one in current_process.activity()]


def waits() -> list[tuple[Any, ...]]:
    """Return what this process waits for, as reported by `current_process.pending_calls`."""
    return [tuple(one) for one in current_process.pending_calls()]


def state() -> tuple[Any, Any, Any]:
    """Return stacks, waits and activities at once, because a hanging process never replies."""
    return stacks(), waits(), activities()


def stacks() -> list[Stack]:
    """Return the stacks of all threads of this process and of the suspended tasks of event loops.

    Returns:
        For each stack: name and id of the thread, name and id of the task, and the frames,
        innermost first. The task is None for the stack of the thread itself.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    tops = sys._current_frames()
    found: list[Stack] = []
    for ident, top in tops.items():
        found.append((names.get(ident, ""), ident, None, None, _plain_frames(_frames_from(top))))
    for ident, loop in running_loops(tops.items()).items():
        for task, number, frames in task_stacks(loop):
            found.append((names.get(ident, ""), ident, task, number, _plain_frames(frames)))
    return found


def _frames_from(top: FrameType) -> Iterator[FrameType]:
    frame: FrameType | None = top
    while frame is not None:
        yield frame
        frame = frame.f_back


def _plain_frames(frames: Iterable[FrameType]) -> list[tuple[str, str, int]]:
    return [
        (frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno or 0)
        for frame in islice(frames, _FRAMES_MAX)
    ]


def request_all(folders: Sequence[Path], request: str, timeout_s: float) -> dict[Path, Any]:
    """Send one request to several processes at once; return the replies that arrive in time."""
    until = time.monotonic() + timeout_s
    replies: dict[Path, Any] = {}
    with selectors.DefaultSelector() as selector:
        for folder in folders:
            with suppress(OSError):
                selector.register(
                    _connect(folder, request), selectors.EVENT_READ, (folder, bytearray())
                )
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                folder, text = key.data
                is_over = True
                with suppress(OSError):
                    piece = key.fileobj.recv(_REPLY_LEN)  # type: ignore[union-attr]
                    text += piece
                    # `true` is a complete reply, so the end of the connection need not be awaited.
                    is_over = not piece or text == _TRUE
                if is_over:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    with suppress(ValueError):
                        replies[folder] = json.loads(text)
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return replies


def _connect(folder: Path, request: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    try:
        client.setblocking(False)
        with short_socket_path(folder, _NAME) as path:
            client.connect(path)
        client.send(request.encode() + b"\n")
    except OSError:
        client.close()
        raise
    return client


class short_socket_path:
    """Path of a socket in a folder, short enough for the kernel even if the folder's is not."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def __enter__(self) -> str:
        self._fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{self._name}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
