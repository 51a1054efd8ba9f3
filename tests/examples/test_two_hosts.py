"""The examples for several machines run on emulated hosts with the two documented commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hosts.world import Host, HostProcess, World
from tests.hosts.world.possible import why_not
from tests.programs import missing_line
from tools.workspace import ROOT

PORT = 26600
LIMIT_S = 60.0


def reason() -> str | None:
    """Return the reason why hosts cannot be emulated here, or None."""
    try:
        return why_not()
    except FileNotFoundError as error:
        return str(error)


pytestmark = pytest.mark.skipif(reason() is not None, reason=f"no hosts: {reason()}")


class Machines:
    """A machine for the program and two with workers, with the credentials of one job."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        """Start the workers as a user would."""
        self.folder = folder
        names = ["here", "w0", "w1"]
        shared = [folder, ROOT]
        self.world = stack.enter_context(World(names, shared=shared))
        self.here, *others = self.world.hosts
        made = self.here.run([sys.executable, "-m", "mesh_core.credentials", "keys", *names[1:]],
                             cwd=folder)  # fmt: skip
        assert "for the worker w1" in made.stdout
        self.workers = {host.name: self._worker(host) for host in others}

    def _worker(self, host: Host) -> HostProcess:
        words = ["--listen", f"tcp://*:{PORT}", "--credentials", f"keys/{host.name}"]
        command = [sys.executable, "-m", "mesh_core.worker", *words]
        worker = host.popen(command, stdout=subprocess.PIPE, cwd=self.folder)
        assert worker.stdout is not None
        assert worker.stdout.readline().startswith("mesh worker serves")
        return worker

    def start(self, script: str) -> HostProcess:
        """Start an example on the first machine."""
        words = ["--credentials", "keys/controller", f"w0:{PORT}", f"w1:{PORT}"]
        command = [sys.executable, "-u", os.fspath(ROOT / "examples" / script), *words]
        return self.here.popen(command, stdout=subprocess.PIPE, cwd=self.folder)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """Three machines."""
    with ExitStack() as stack:
        yield Machines(stack, tmp_path)


def test_two_hosts(machines: Machines) -> None:
    program = machines.start("15_two_hosts.py")
    printed, _ = program.communicate(timeout=LIMIT_S)
    assert program.returncode == 0
    shown = ["hosts: {hosts: 2}", "the first runs on w0", "asked from machine to machine: [25, 25]"]
    assert missing_line(printed, shown) is None, printed


def test_lost_host(machines: Machines) -> None:
    program = machines.start("16_lost_host.py")
    assert program.stdout is not None
    while (line := program.stdout.readline()) != "losing the last host\n":
        assert line, "it has ended before"
    machines.world.faults.power_cut(machines.world["w1"])
    printed, _ = program.communicate(timeout=LIMIT_S)
    assert program.returncode == 0
    assert missing_line(printed, ["lost: w1", "the others go on: 16"]) is None, printed
