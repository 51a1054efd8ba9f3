"""A world ends with its maker, in whatever way that ends, and nothing of it stays."""

import os
import select
import signal
import subprocess
import sys
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
"""

ENDS = {
    "last line": "",
    "exception": "raise RuntimeError('the end')",
    "SIGKILL": "signal.pause()",
    # The child has all that was open; only the death of its parent tells.
    "SIGKILL beside a child": "os.fork(); signal.pause()",
}


@pytest.mark.parametrize("end", ENDS)
def test_nothing_outlives_the_maker(worlds: Worlds, end: str) -> None:
    before = Machine()
    with subprocess.Popen(
        [sys.executable, "-c", MAKE_A_WORLD + ENDS[end]],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as maker:
        assert maker.stdout is not None
        pids = [int(pid) for pid in maker.stdout.readline().split()]
        assert len(pids) == 2
        try:
            gone = [os.pidfd_open(pid) for pid in pids if Path(f"/proc/{pid}").exists()]
        except ProcessLookupError:
            gone = []
        if end.startswith("SIGKILL"):
            maker.kill()
        for pidfd in gone:
            assert select.select([pidfd], [], [], LIMIT_S)[0], "a process of a host lives on"
            os.close(pidfd)
        maker.wait(LIMIT_S)
        before.await_again()
        # The child of the last case is ours to end.
        try:
            os.killpg(maker.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def test_close_leaves_nothing(worlds: Worlds) -> None:
    before = Machine()
    with_two = worlds(2)
    process = with_two["h1"].popen(["sleep", "600"])
    with_two.faults.bandwidth(with_two["h0"], 10_000_000)
    with_two.faults.pause(with_two["h1"])
    with_two.close()
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    with_two.close()
    before.await_again()


def test_many_worlds_are_side_by_side(worlds: Worlds) -> None:
    made: list[World] = [worlds(["same", "names"]) for _ in range(3)]
    for world in made:
        assert world["same"].run(["hostname"]).stdout == "same\n"


class Machine:
    """What a world could leave on the machine."""

    def __init__(self) -> None:
        """Looks at how it is."""
        self.cards = sorted(os.listdir("/sys/class/net"))
        self.mounts = Path("/proc/self/mounts").read_text()
        self.named = sorted(str(path) for path in Path("/run").glob("netns/*"))
        self.networks = _networks()
        self.files = sorted(os.listdir("/tmp"))

    def await_again(self) -> None:
        """Waits until it is like that again, for no network must be new, and compares."""
        pause = select.poll()
        for _ in range(int(LIMIT_S * 100)):
            if _networks() <= self.networks:
                break
            pause.poll(10)
        now = Machine()
        assert now.networks <= self.networks
        assert (now.cards, now.mounts, now.named) == (self.cards, self.mounts, self.named)
        assert now.files == self.files


def _networks() -> set[str]:
    """Returns the network namespaces that processes are in."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(folder / "ns" / "net"))
        except OSError:
            continue  # it went while we looked
    return found
