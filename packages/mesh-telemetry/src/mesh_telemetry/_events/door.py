"""Where a process answers the telemetry process of its host: a socket in its folder.

A question is a word, perhaps a space and what it is about, and a line feed; the answer is JSON up
to the end of the connection. It is no message of Mesh, and nobody who looks at messages sees it.
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

from mesh_core.spi import activity, waiting
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
    "STOP",
    "WAITS",
    "Door",
    "activities",
    "ask_all",
    "nearby",
    "stacks",
    "waits",
]

ACTIVITY, FLUSH, ROWS, STACKS = "activity", "flush", "rows", "stacks"
STOP, WAITS = "stop", "waits"
SESSIONS, RULES = "debug_sessions", "on_failure"
_NAME = "door"
_WORD_LEN_MAX = 256
_FRAMES_MAX = 128
# A caller that neither asks nor listens does not hold up who records.
_CALLER_S = 0.5
_ANSWER_LEN = 1 << 16
_YES = b"true"


class Door:
    """The listening end.

    Args:
        folder: That of the process.
        answers: What there is to be asked, and who knows it; called with what follows the word, if
            anything does.
        apart: The same for what others have written: it is answered in a thread of its own, one
            after the other.
    """

    def __init__(
        self,
        folder: Path,
        answers: Mapping[str, Callable[..., Any]],
        apart: Mapping[str, Callable[..., Any]],
    ) -> None:
        self._answers = answers
        self._apart = apart
        self._turn = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        with nearby(folder, _NAME) as path:
            self._socket.bind(path)
        self._socket.listen(64)

    def fileno(self) -> int:
        """Gives the descriptor to wait on."""
        return self._socket.fileno()

    def serve(self) -> None:
        """Answers who has come, without waiting for anybody else."""
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            with suppress(OSError):
                caller.settimeout(_CALLER_S)
                said = caller.recv(_WORD_LEN_MAX).decode(errors="replace").strip()
                word, _, about = said.partition(" ")
                answer = self._answers.get(word) or self._apart.get(word)
                if answer is not None and about:
                    answer = partial(answer, about)
                if answer is not None and word in self._apart:
                    threading.Thread(
                        target=self._tell,
                        args=(caller, answer),
                        name="mesh-telemetry-rows",
                        daemon=True,
                    ).start()
                    continue
                if answer is not None:
                    caller.sendall(json.dumps(answer()).encode())
            caller.close()

    def _tell(self, caller: socket.socket, answer: Callable[[], Any]) -> None:
        # Who comes while another one is being answered is not: nobody waits for what hangs.
        with caller, suppress(OSError):
            if self._turn.acquire(timeout=_CALLER_S):
                try:
                    caller.sendall(json.dumps(answer(), default=str).encode())
                finally:
                    self._turn.release()

    def close(self) -> None:
        """Answers nobody any more; harmless in a fork."""
        self._socket.close()


def activities() -> list[tuple[Any, ...]]:
    """Gives what the actors of this process do, as `mesh_core.spi.activity` says it."""
    return [tuple(one) for one in activity()]


def waits() -> list[tuple[Any, ...]]:
    """Gives what this process waits for, as `mesh_core.spi.waiting` says it."""
    return [tuple(one) for one in waiting()]


def stacks() -> list[Stack]:
    """Gives what each thread of this process runs, and what the tasks of event loops await.

    Of each the name of the thread and its number, the name of the task and its number, which are
    None for what the thread runs itself, and the frames from the innermost.
    """
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    tops = sys._current_frames()
    found: list[Stack] = []
    for ident, top in tops.items():
        found.append((names.get(ident, ""), ident, None, None, _lines(_callers(top))))
    for ident, loop in running_loops(tops.items()).items():
        for task, number, frames in task_stacks(loop):
            found.append((names.get(ident, ""), ident, task, number, _lines(frames)))
    return found


def _callers(top: FrameType) -> Iterator[FrameType]:
    frame: FrameType | None = top
    while frame is not None:
        yield frame
        frame = frame.f_back


def _lines(frames: Iterable[FrameType]) -> list[tuple[str, str, int]]:
    return [
        (frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno or 0)
        for frame in islice(frames, _FRAMES_MAX)
    ]


def ask_all(folders: Sequence[Path], word: str, timeout_s: float) -> dict[Path, Any]:
    """Asks the processes of some folders the same at the same time; leaves out who says nothing."""
    until = time.monotonic() + timeout_s
    answers: dict[Path, Any] = {}
    with selectors.DefaultSelector() as selector:
        for folder in folders:
            with suppress(OSError):
                selector.register(_call(folder, word), selectors.EVENT_READ, (folder, bytearray()))
        while selector.get_map() and (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                folder, said = key.data
                is_over = True
                with suppress(OSError):
                    piece = key.fileobj.recv(_ANSWER_LEN)  # type: ignore[union-attr]
                    said += piece
                    # A mere yes is whole: its end need not be waited for.
                    is_over = not piece or said == _YES
                if is_over:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
                    with suppress(ValueError):
                        answers[folder] = json.loads(said)
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return answers


def _call(folder: Path, word: str) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX)
    try:
        caller.setblocking(False)
        with nearby(folder, _NAME) as path:
            caller.connect(path)
        caller.send(word.encode() + b"\n")
    except OSError:
        caller.close()
        raise
    return caller


class nearby:
    """The address of a socket in a folder, short enough for the kernel however long the path."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    def __enter__(self) -> str:
        self._fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{self._name}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
