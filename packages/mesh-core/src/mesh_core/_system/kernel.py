"""System calls and /proc queries about processes."""

import contextlib
import ctypes
import os
import select
import time
import warnings
from collections.abc import Collection, Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/accel", "/dev/dri/")

# The index of the exit status in /proc/PID/stat, counted from the state.
_EXIT_CODE = 49
# The index of the resident memory there, in pages.
_RESIDENT_PAGES = 21
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")

# Threads that a library joins before a fork may take a moment to leave the process table.
_SETTLE_LIMIT_S = 0.2

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: object) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"prctl {option} failed: {os.strerror(errno)}")


def die_with_parent(signal: int) -> None:
    """Make the kernel send `signal` to this process when its parent dies; 0 reverts this."""
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal))


def adopt_orphans() -> None:
    """Make this process the new parent of descendants whose parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def set_title(title: str) -> None:
    """Set the short name that ps and top show; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(title.encode("utf-8", "replace")))


def _thread_count() -> int:
    """Return the number of threads of this process, including those of C libraries."""
    return len(os.listdir("/proc/self/task"))


def open_files() -> dict[int, str]:
    """Return the targets of all descriptors of this process."""
    files: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # The descriptor that listed the directory is closed.
            files[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return files


def close_all_but(kept: Collection[int | None]) -> None:
    """Close all descriptors except the standard streams and those in `kept`."""
    for fd in open_files():
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):  # The descriptor that listed the others is closed.
                os.close(fd)


def is_unshareable(target: str) -> bool:
    """Return whether a descriptor of this kind breaks if a forked process uses it too."""
    return target.startswith(("socket:", "anon_inode:[eventpoll]", *_DEVICES))


def has_children() -> bool:
    """Return whether this process has any child, running or not yet reaped."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def children() -> list[int]:
    """Return the pids of the children of this process."""
    mine = str(os.getpid()).encode()
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            fields = _stat(int(name))
            if fields and fields[1] == mine:
                found.append(int(name))
    return found


def state_of(pid: int) -> str | None:
    """Return the state of a process as shown by /proc; None if the process does not exist.

    `T` is stopped by a signal, `t` is stopped by a debugger, `Z` has exited and was not reaped.
    """
    fields = _stat(pid)
    return fields[0].decode() if fields else None


def status_of_ended(pid: int) -> int | None:
    """Return the status of an exited process that was not reaped, as from wait(2), else None."""
    fields = _stat(pid)
    return int(fields[_EXIT_CODE]) if fields and fields[0] == b"Z" else None


def parents() -> dict[int, int]:
    """Return the parent of every visible process; empty if no descriptor is left."""
    found: dict[int, int] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    for name in names:
        if name.isdecimal() and (fields := _stat(int(name))):
            found[int(name)] = int(fields[1])
    return found


def _stat(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The second field is a name that may contain blanks and brackets.
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []


def parent_and_session(pid: int) -> tuple[int, int] | None:
    """Return the parent and the session of a process; None if the process does not exist."""
    fields = _stat(pid)
    return (int(fields[1]), int(fields[3])) if fields else None


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process; 0 if it does not exist or has exited."""
    fields = _stat(pid)
    return int(fields[_RESIDENT_PAGES]) * _PAGE_BYTES if fields else 0


def leads_session(pid: int) -> bool:
    """Return whether a process leads its own session, as daemons do."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def wait_until_orphaned(parent: int) -> None:
    """Block until the parent is dead and the kernel has assigned a new parent to this process."""
    try:
        handle = os.pidfd_open(parent)
    except ProcessLookupError:
        return
    except OSError:  # The kernel or a sandbox lacks pidfd; polling takes a few rounds only.
        while os.getppid() == parent:
            time.sleep(0.0002)
        return
    # If the parent lives now, the handle refers to the parent and not to a later process with the
    # same pid.
    if os.getppid() == parent:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()
    os.close(handle)


def fork() -> int:
    """Fork without Python's warning about threads, which the callers have counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def settled_thread_count() -> int:
    """Return the number of threads that remain after libraries have prepared for a fork.

    OpenBLAS starts a pool when numpy is imported, ends it before a fork, and starts it again on
    demand. A fork whose child is not used shows which threads are of that kind.
    """
    if _thread_count() == 1:
        return 1
    pid = fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    deadline = time.monotonic() + _SETTLE_LIMIT_S
    while (count := _thread_count()) > 1 and time.monotonic() < deadline:
        time.sleep(0.001)
    return count


def wait_until_dead(pids: Sequence[int], limit_s: float) -> None:
    """Wait at most `limit_s` until the processes are dead; they need not be children."""
    deadline = time.monotonic() + limit_s
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        os.close(handle)


def kill_quietly(pid: int, signal: int) -> None:
    """Send a signal to a process that may already be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal)


def kill_group_quietly(group: int, signal: int) -> None:
    """Send a signal to a process group that may already be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal)
