"""Processes that do not respond are reported immediately, and killed after a timeout."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import signal
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from freezing import freeze
from host_recorder import children, is_alive, parent

from mesh_core import Actor, ProcDied, configured, endpoint
from mesh_core.testing import local_procs as local_procs
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mesh_core import ProcMesh
    from mesh_core.testing import LocalProcs

PATIENCE_S = 1.0
# Several check intervals of every watchdog.
LONGER_S = 2.5
LIMIT_S = 30.0


class Member(Actor):
    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def close_everything(self) -> None:
        os.closerange(3, 4096)

    @endpoint
    def become_another_program(self) -> None:
        os.execvp("sleep", ["sleep", str(LIMIT_S)])

    @endpoint
    def lose_connections(self, seconds: float) -> str:
        """Replace all connections by files, and open none for a while."""
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        nothing = os.open(os.devnull, os.O_RDONLY)
        connections = [fd for fd in range(3, nothing) if is_connection(fd)]
        # From here on no connection can be opened: all lower descriptor numbers are in use.
        while (last := os.dup(nothing)) < max(connections):
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, limits[1]))
        for fd in connections:
            os.dup2(nothing, fd)
        later = threading.Timer(seconds, resource.setrlimit, [resource.RLIMIT_NOFILE, limits])
        later.start()
        return "done"

    @endpoint
    def hold_the_interpreter(self, seconds: float) -> str:
        # PyDLL keeps the GIL during the call.
        ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))
        return "done"


@pytest.fixture
def impatient() -> Iterator[None]:
    """Processes that the test spawns may be silent for a second."""
    with configured(unresponsive_timeout_s=PATIENCE_S):
        yield


def member(procs: ProcMesh) -> tuple[Member, int]:
    actors = procs.spawn("member", Member)
    return actors, actors.slice(procs=0).pid.call_one().get(timeout=LIMIT_S)


def continued(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)


@pytest.mark.usefixtures("impatient")
def test_a_process_that_is_stopped_for_too_long_is_killed(
    local_procs: LocalProcs,
) -> None:
    actors, pid = member(local_procs({"procs": 2}))
    freeze(pid)
    with pytest.raises(ProcDied, match="it was stopped by SIGSTOP for 1 s and killed") as raised:
        actors.slice(procs=0).echo.call_one(1).get(timeout=LIMIT_S)
    assert (raised.value.pid, raised.value.signal) == (pid, signal.SIGKILL)
    assert not is_alive(pid)
    assert actors.slice(procs=1).echo.call_one(2).get(timeout=LIMIT_S) == 2


@pytest.mark.usefixtures("impatient")
def test_a_stopped_process_that_continues_in_time_is_not_killed(local_procs: LocalProcs) -> None:
    actors, pid = member(local_procs({"procs": 1}))
    until = time.monotonic() + LONGER_S
    while time.monotonic() < until:
        freeze(pid)
        continued(pid)
        assert actors.echo.call_one(1).get(timeout=LIMIT_S) == 1


@pytest.mark.usefixtures("impatient")
def test_a_process_without_connections_is_killed(local_procs: LocalProcs) -> None:
    actors, pid = member(local_procs({"procs": 1}))
    with pytest.raises(ProcDied, match="it closed its connections, and was killed") as raised:
        actors.become_another_program.call_one().get(timeout=LIMIT_S)
    assert raised.value.pid == pid
    assert not is_alive(pid)


def test_a_process_that_cannot_open_a_connection_tries_again(local_procs: LocalProcs) -> None:
    actors, pid = member(local_procs({"procs": 1}))
    assert actors.lose_connections.call_one(1.0).get(timeout=LIMIT_S) == "done"
    assert actors.pid.call_one().get(timeout=LIMIT_S) == pid


def test_a_process_that_closes_all_its_descriptors_exits_immediately(
    local_procs: LocalProcs,
) -> None:
    actors, pid = member(local_procs({"procs": 1}))
    with pytest.raises(ProcDied, match="it closed its connections") as raised:
        actors.close_everything.call_one().get(timeout=LIMIT_S)
    assert (raised.value.pid, raised.value.exit_code) == (pid, 1)


@pytest.mark.usefixtures("impatient")
def test_a_process_that_holds_the_interpreter_is_not_unresponsive(
    local_procs: LocalProcs,
) -> None:
    actors, _ = member(local_procs({"procs": 1}))
    busy = actors.hold_the_interpreter.call_one(LONGER_S)
    assert busy.get(timeout=LIMIT_S) == "done"
    assert actors.echo.call_one(1).get(timeout=LIMIT_S) == 1


@pytest.mark.usefixtures("impatient")
def test_a_process_stopped_by_a_debugger_is_not_killed(local_procs: LocalProcs) -> None:
    actors, pid = member(local_procs({"procs": 1}))
    with traced(pid):
        assert state(pid) == "t"
        with pytest.raises(TimeoutError):
            actors.echo.call_one(1).get(timeout=LONGER_S)
    assert actors.echo.call_one(2).get(timeout=LIMIT_S) == 2


@pytest.mark.usefixtures("impatient")
def test_a_stopped_supervisor_blocks_neither_calls_nor_stops(local_procs: LocalProcs) -> None:
    procs = local_procs({"procs": 1})
    actors, pid = member(procs)
    supervisor = parent(pid)
    freeze(supervisor)
    try:
        assert actors.echo.call_one(1).get(timeout=LIMIT_S) == 1
        why = rf"its process supervisor \(pid {supervisor}\).*has been stopped by a signal"
        with pytest.raises(ProcDied, match=re.compile(f"could not start: {why}", re.DOTALL)):
            local_procs({"procs": 1}).initialized.get(timeout=LIMIT_S)
        procs.stop().get(timeout=LIMIT_S)
    finally:
        continued(supervisor)
    assert wait_until(lambda: not is_alive(pid), LIMIT_S)
    assert local_procs({"procs": 1}).initialized.get(timeout=LIMIT_S)


@pytest.mark.usefixtures("impatient")
def test_a_process_that_dies_under_a_stopped_supervisor_is_reported(
    local_procs: LocalProcs,
) -> None:
    actors, pid = member(local_procs({"procs": 1}))
    supervisor = parent(pid)
    freeze(supervisor)
    try:
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ProcDied) as raised:
            actors.echo.call_one(1).get(timeout=LIMIT_S)
        assert (raised.value.pid, raised.value.signal) == (pid, signal.SIGKILL)
    finally:
        continued(supervisor)


def test_a_stopped_template_is_replaced(local_procs: LocalProcs) -> None:
    actors, pid = member(local_procs({"procs": 1}))
    templates = [child for child in children(parent(pid)) if title(child) == "mesh-template"]
    assert templates
    for template in templates:
        freeze(template)
    other, _ = member(local_procs({"procs": 2}))
    assert other.echo.call(3).get(timeout=LIMIT_S).values() == [3, 3]
    assert actors.echo.call_one(4).get(timeout=LIMIT_S) == 4
    for template in templates:
        if is_alive(template):
            continued(template)


def test_a_timeout_error_names_the_stopped_process(local_procs: LocalProcs) -> None:
    actors, pid = member(local_procs({"procs": 2}))
    freeze(pid)
    answer = actors.echo.call(1)
    silent = rf"rank 0 \(pid {pid} on .*\) has not replied; it has been stopped by SIGSTOP for \d s"
    with pytest.raises(TimeoutError, match=silent):
        answer.get(timeout=0.5)
    continued(pid)
    assert answer.get(timeout=LIMIT_S).values() == [1, 1]


def test_a_timeout_error_names_the_busy_process(local_procs: LocalProcs) -> None:
    actors, pid = member(local_procs({"procs": 1}))
    answer = actors.hold_the_interpreter.call_one(1.0)
    with pytest.raises(TimeoutError, match=rf"rank 0 \(pid {pid} on .*\) has not replied$"):
        answer.get(timeout=0.2)
    assert answer.get(timeout=LIMIT_S) == "done"


def test_a_timeout_of_a_stop_names_the_stopped_process(local_procs: LocalProcs) -> None:
    procs = local_procs({"procs": 1})
    _, pid = member(procs)
    freeze(pid)
    ended = procs.stop()
    with pytest.raises(TimeoutError, match=rf"pid {pid} on .* has been stopped by SIGSTOP"):
        ended.get(timeout=0.5)
    ended.get(timeout=LIMIT_S)


def test_a_timeout_of_a_start_names_the_stopped_supervisor(local_procs: LocalProcs) -> None:
    _, pid = member(local_procs({"procs": 1}))
    supervisor = parent(pid)
    freeze(supervisor)
    started = local_procs({"procs": 1}).initialized
    try:
        why = rf"rank 0 .*its process supervisor \(pid {supervisor}\) has been"
        with pytest.raises(TimeoutError, match=why):
            started.get(timeout=2.0)
    finally:
        continued(supervisor)
    assert started.get(timeout=LIMIT_S)


def is_connection(fd: int) -> bool:
    """Return whether a descriptor is a connected socket."""
    try:
        with socket.socket(fileno=os.dup(fd)) as end:
            return bool(end.getpeername()) or end.family == socket.AF_UNIX
    except OSError:
        return False


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class traced:
    """Stops a process for the duration of a block, like a debugger."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        self._ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]

    def __enter__(self) -> None:
        attach = 16
        for thread in self._threads():
            if self._ptrace(attach, thread, None, None) == 0:
                os.waitpid(thread, 0x40000000)  # __WALL
            elif (number := ctypes.get_errno()) != errno.ESRCH:
                # A thread that is still traced would keep the process from ending.
                self.__exit__()
                pytest.skip(f"no process can be traced here: {os.strerror(number)}")

    def __exit__(self, *_: object) -> None:
        detach = 17
        for thread in self._threads():
            self._ptrace(detach, thread, None, None)

    def _threads(self) -> list[int]:
        return sorted(int(name) for name in os.listdir(f"/proc/{self._pid}/task"))
