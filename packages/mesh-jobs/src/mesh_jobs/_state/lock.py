"""The lock of a job, which admits one writer at a time."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mesh_jobs._atomic_files import private_folder
from mesh_jobs._errors import JobBusy
from mesh_jobs._state.record import this_owner

__all__ = ["locked", "locked_if_free"]

_PAUSE_S = 0.05
# The holder truncates the lock file, so a symbolic link must not be followed.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold a lock inside the context; the kernel releases it if the holder dies.

    Raises:
        JobBusy: Another program, named in the message, held the lock until the timeout.
        OSError: The lock file cannot be opened.
    """
    number = _acquire(path, time.monotonic() + timeout_s, timeout_s)
    try:
        os.ftruncate(number, 0)
        os.pwrite(number, json.dumps(this_owner()).encode(), 0)
        yield
    finally:
        os.close(number)


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Hold a lock if its file exists and it is free; yield whether that succeeded."""
    try:
        number = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield _is_still(path, number)
    finally:
        os.close(number)


def _acquire(path: Path, deadline: float, timeout_s: float) -> int:
    while True:
        private_folder(path.parent)
        try:
            number = os.open(path, _FLAGS, 0o600)
        except FileNotFoundError:
            continue  # The job was killed, and its folder was just removed.
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(number, 1000, 0).decode(errors="replace")
            os.close(number)
            if time.monotonic() > deadline:
                raise JobBusy(
                    f"another program has been changing the job in {path.parent} for "
                    f"{timeout_s:g} s: {_name(holder)}: wait for it, or end it"
                ) from None
            time.sleep(_PAUSE_S)
            continue
        if _is_still(path, number):
            return number
        os.close(number)  # The file was removed, so other programs would lock a new one.


def _is_still(path: Path, number: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(number))
    except FileNotFoundError:
        return False


def _name(holder: str) -> str:
    try:
        owner = json.loads(holder)
        return f"process {owner['pid']} of {owner['user']} on {owner['host']}"
    except (ValueError, KeyError, TypeError):
        return "an unknown process"
