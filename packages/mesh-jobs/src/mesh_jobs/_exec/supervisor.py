"""Supervises one command and terminates its descendants.

This is a separate program, which imports only the standard library.

The supervisor runs between the process of an actor and the command of a user. When the actor's
process exits or is killed, the supervisor terminates the command and its descendants; when the
command exits, the supervisor terminates the descendants that are left. It communicates over one
socket, whose file descriptor is the first argument. Each received byte is the number of a signal
for the command, and end of file means that the owner has exited. The supervisor sends the exit
status of the command when all processes have exited.
"""

import ctypes
import fcntl
import os
import select
import signal
import socket
import sys
import termios
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_GRACE_S = 5.0
_LEFT_BEHIND_GRACE_S = 1.0
_CANNOT_EXECUTE = 126
_NOT_FOUND = 127
_BY_SIGNAL = 128


def main(arguments: list[str]) -> None:
    """Run with the arguments `FD KIND FOLDER COMMAND...`.

    The kind is `tty` if stdin is to become the controlling terminal of the command, else `pipes`.
    """
    control = socket.socket(fileno=int(arguments[0]))
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        # A scheduler signals all processes of a job. The command has its grace period, so the
        # supervisor must outlive these signals.
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    supervisor_pid = os.getpid()
    executed_read, executed_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        _exec(supervisor_pid, arguments[1] == "tty", arguments[2], arguments[3:])
    # Both ends are closed on exec. Until then, the child has no separate process group and ignores
    # signals, so a signal that is forwarded earlier would be lost.
    os.close(executed_write)
    os.read(executed_read, 1)
    os.close(executed_read)
    # The pipes must reach end of file when the command exits.
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    control.setblocking(False)
    status = _watch(pid, control, wake_read)
    _terminate_children(_LEFT_BEHIND_GRACE_S)
    try:
        control.sendall(b"%d\n" % status)
    except OSError:
        return  # The owner has exited.


def _exec(supervisor_pid: int, is_tty: bool, folder: str, command: list[str]) -> None:
    """Execute the command in the child process; never returns."""
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor_pid:
            os._exit(_BY_SIGNAL + signal.SIGKILL)
        os.setsid()
        if is_tty:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            try:
                signal.signal(number, signal.SIG_DFL)
            except OSError:
                continue  # The C library reserves this signal.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if folder:
            os.chdir(folder)
        os.execvp(command[0], command)
    except FileNotFoundError as error:
        _refuse(command, error, folder, _NOT_FOUND)
    except OSError as error:
        _refuse(command, error, folder, _CANNOT_EXECUTE)
    finally:
        os._exit(_CANNOT_EXECUTE)


def _refuse(command: list[str], error: OSError, folder: str, status: int) -> None:
    what = f"folder {folder!r}" if error.filename == folder else f"command {command[0]!r}"
    os.write(2, f"mesh: {what} cannot be used: {error.strerror}\n".encode())
    os._exit(status)


def _watch(pid: int, control: socket.socket, wake: int) -> int:
    """Forward signals until the command exits; return its status, 128 + N for signal N."""
    while True:
        ended, raw = os.waitpid(-1, os.WNOHANG) if _has_children() else (0, 0)
        if ended == pid:
            code = os.waitstatus_to_exitcode(raw)
            return code if code >= 0 else _BY_SIGNAL - code
        if ended:
            continue  # An orphaned descendant.
        for ready in select.select([control.fileno(), wake], [], [])[0]:
            if ready == wake:
                os.read(wake, 512)
            elif not _forward_signals(pid, control):
                _terminate_children(_GRACE_S)
                return _BY_SIGNAL + signal.SIGTERM


def _forward_signals(pid: int, control: socket.socket) -> bool:
    """Forward received signals; return False if the owner has exited."""
    try:
        numbers = control.recv(64)
    except BlockingIOError:
        return True
    except OSError:
        return False
    for number in numbers:
        try:
            os.killpg(pid, number)
        except OSError:
            continue  # The command has exited, or runs as another user.
    return bool(numbers)


def _terminate_children(grace_s: float) -> None:
    """Terminate all descendants, with SIGTERM first and SIGKILL after the grace period."""
    until = time.monotonic() + grace_s
    signalled: set[int] = set()
    while _has_children():
        is_late = time.monotonic() >= until
        for pid in _descendants(os.getpid()):
            if is_late or pid not in signalled:
                signalled.add(pid)
                _kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
                # A stopped process handles SIGTERM only after SIGCONT.
                _kill(pid, signal.SIGCONT)
        while _has_children() and os.waitpid(-1, os.WNOHANG)[0]:
            pass
        time.sleep(0.005)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _descendants(pid: int) -> list[int]:
    below = [child for child, parent in _parents().items() if parent == pid]
    return [*below, *(each for child in below for each in _descendants(child))]


def _parents() -> dict[int, int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue  # The process has exited.
    return parents


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return


def _prctl(option: int, argument: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(argument), 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
