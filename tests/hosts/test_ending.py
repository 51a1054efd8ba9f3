"""A world ends with its creator, however that exits, and leaves nothing behind."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hosts.conftest import Worlds
from tests.hosts.world import World
from tools.workspace import ROOT

LIMIT_S = 20.0

MAKE_A_WORLD = """
import os, signal, sys
from tests.hosts.world import World

world = World(["h0", "h1"])
for host in world:
    host.popen(["sleep", "600"])
delay = world.faults.delay(*world.hosts, 0.01)
print(*(pid for host in world for pid in host.pids()), flush=True)
sys.stdin.read()
"""

FORK = "os.fork() or print('ready', flush=True); signal.pause()"

#: The next action of the creator, and the signal that it receives, if any.
ENDS = {
    "last line": ("", None),
    "exception": ("raise RuntimeError('the end')", None),
    "SIGKILL": ("print('ready', flush=True); signal.pause()", signal.SIGKILL),
    # The child inherits all descriptors, so only the death of its parent ends the world.
    "SIGKILL next to a child": (
        "os.fork() or print('ready', flush=True); signal.pause()",
        signal.SIGKILL,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_outlives_the_creator_of_a_world(worlds: Worlds, tmp_path: Path, end: str) -> None:
    code, number = ENDS[end]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", MAKE_A_WORLD + code],
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    ) as maker:
        assert maker.stdout is not None
        assert maker.stdin is not None
        hosts = [int(pid) for pid in maker.stdout.readline().split()]
        assert len(hosts) == 2
        traces = Traces(hosts)
        assert traces.processes()
        maker.stdin.close()
        if number is not None:
            # In the last case the child prints the line.
            assert maker.stdout.readline() == "ready\n"
            maker.send_signal(number)
        assert maker.wait(LIMIT_S) == (-number if number else int(end == "exception"))
        traces.await_none()
        assert os.listdir(tmp_path) == []
        if "fork" in code:
            os.killpg(maker.pid, signal.SIGKILL)


def test_close_leaves_nothing_behind(worlds: Worlds) -> None:
    world = worlds(2)
    process = world["h1"].popen(["sleep", "600"])
    traces = Traces([process.pid])
    world.faults.bandwidth(world["h0"], 10_000_000)
    world.faults.pause(world["h1"])
    world.close()
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    world.close()
    traces.await_none()


def test_many_worlds_can_exist_side_by_side(worlds: Worlds) -> None:
    made: list[World] = [worlds(["same", "names"]) for _ in range(3)]
    for world in made:
        assert world["same"].run(["hostname"]).stdout == "same\n"


class Traces:
    """Everything that a world could leave behind on a machine that also runs other programs."""

    def __init__(self, pids: list[int]) -> None:
        """Record the namespaces of these processes, which run on hosts."""
        self._spaces = {space for pid in pids for space in _spaces(pid)} - _spaces(os.getpid())
        self._mounts = _mounts()

    def processes(self) -> list[int]:
        """Return the processes that are in the namespaces or hold them open."""
        pids = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
        return [pid for pid in pids if self._spaces & (_spaces(pid) | _open_files(pid))]

    def await_none(self) -> None:
        """Wait until all processes have exited, and check that no other traces remain."""
        until = time.monotonic() + LIMIT_S
        pause = select.poll()
        while left := self.processes():
            assert time.monotonic() < until, f"still there: {left}"
            pause.poll(10)
        assert _mounts() <= self._mounts
        interfaces = os.listdir("/sys/class/net")
        assert not [
            interface
            for interface in interfaces
            if interface.startswith(("port", "delay", "far", "switch"))
        ]


def _spaces(pid: int) -> set[str]:
    kinds = ("net", "pid", "mnt", "uts", "ipc")
    return {_target(f"/proc/{pid}/ns/{kind}") for kind in kinds} - {""}


def _open_files(pid: int) -> set[str]:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return set()
    return {_target(f"/proc/{pid}/fd/{number}") for number in numbers}


def _mounts() -> set[str]:
    """Return the mounts of private folders, and mounts that keep namespaces as `ip netns` does."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return {line for line in lines if " nsfs " in line or line.startswith("private ")}


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""  # The file disappeared after it was listed.
