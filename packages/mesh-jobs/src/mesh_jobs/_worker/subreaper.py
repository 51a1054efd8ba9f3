"""A worker as the parent of what has lost its own: so it sees all that runs in its name.

In a container it is that anyhow, as the first process there.
"""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import suppress

__all__ = ["Adoption"]

_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 1.0


class Adoption:
    """Adopts processes whose parent has ended, and waits for those that end."""

    def __init__(self) -> None:
        self._left: set[int] = set()

    def start(self) -> None:
        """Adopts from now on; where the system refuses, init does, as ever."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), 0, 0, 0)
        threading.Thread(target=self._watch, name="mesh-adoption", daemon=True).start()

    def look(self) -> None:
        """Waits for those that had ended at the last look, and notes those that have now.

        What this process has started itself is waited for by who did that, and long before.
        """
        ended = _ended_strangers()
        for pid in self._left & ended:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._left = ended - self._left

    def _watch(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_LOOK_S)
            self.look()


def _ended_strangers() -> set[int]:
    """Gives the children that have ended and were in another session than this process."""
    own, session = os.getpid(), os.getsid(0)
    found = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                content = file.read()
        except OSError:
            continue
        fields = content[content.rfind(b")") + 2 :].split()
        is_ours = int(fields[1]) == own and int(fields[3]) != session
        if is_ours and fields[0] == b"Z":
            found.add(int(name))
    return found
