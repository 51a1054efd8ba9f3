"""Processes that the kernel kills because memory ran out: the error names the limit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mesh_core._processes.memory_deaths import MemoryDeaths

MIB = 1 << 20


class Machine:
    """Files as the kernel shows them."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.cgroups = folder / "cgroup"
        self.write("proc/vmstat", "pgfault 1\noom_kill 3\n")
        self.write("proc/meminfo", f"MemTotal: {64 << 20} kB\n")

    def write(self, name: str, text: str) -> None:
        path = self.proc.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def deaths(self) -> MemoryDeaths:
        return MemoryDeaths(self.cgroups, self.proc)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def _unified(machine: Machine, kills: int) -> None:
    machine.write("cgroup/cgroup.controllers", "memory\n")
    machine.write("proc/self/cgroup", "0::/job/step\n")
    machine.write("proc/7/cgroup", "0::/job/step (deleted)\n")
    machine.write("cgroup/job/memory.max", f"{200 * MIB}\n")
    machine.write("cgroup/job/step/memory.max", "max\n")
    machine.write("cgroup/job/step/memory.events", f"low 0\noom {kills}\noom_kill {kills}\n")


def test_the_error_names_the_limit_of_a_parent_cgroup(machine: Machine) -> None:
    _unified(machine, 1)
    deaths = machine.deaths()
    place = deaths.cgroup_of(7)
    assert deaths.cause(place, 150 * MIB) is None
    _unified(machine, 2)
    cause = deaths.cause(place, 150 * MIB)
    assert cause is not None
    assert "cgroup /job is limited to 200 MiB; it has had up to 150 MiB" in cause
    assert deaths.cause(place, 150 * MIB) is None


def test_the_error_names_the_limit_of_a_cgroup_v1(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:memory:/\n0::/\n")
    machine.write("proc/7/cgroup", "5:cpu:/x\n4:memory:/job\n0::/\n")
    machine.write("cgroup/memory/job/memory.oom_control", "oom_kill_disable 0\noom_kill 1\n")
    machine.write("cgroup/memory/job/memory.limit_in_bytes", f"{3 << 30}\n")
    machine.write("cgroup/memory/job/cgroup.procs", "8\n")
    machine.write("proc/8/statm", f"0 {(2 << 30) // os.sysconf('SC_PAGESIZE')} 0\n")
    machine.write("proc/8/comm", "loader\n")
    deaths = machine.deaths()
    cause = deaths.cause(deaths.cgroup_of(7), MIB)
    assert cause is not None
    assert "cgroup /job is limited to 3.0 GiB; it has had up to 1 MiB" in cause
    assert cause.endswith("the largest one left is loader (pid 8) with 2.0 GiB")


def test_a_machine_out_of_memory_is_named_as_the_cause(machine: Machine) -> None:
    deaths = machine.deaths()
    assert deaths.cause(None, 150 * MIB) is None
    machine.write("proc/vmstat", "oom_kill 4\n")
    # The kernel has killed a process in some other cgroup.
    assert deaths.cause(None, 50 * MIB) is None
    cause = deaths.cause(None, 150 * MIB)
    assert cause is not None
    assert "the machine, which has 64.0 GiB, ran out of memory" in cause


def test_no_cause_is_reported_if_the_kernel_files_are_missing(tmp_path: Path) -> None:
    deaths = MemoryDeaths(tmp_path / "none", tmp_path / "nothing")
    assert deaths.cause(deaths.cgroup_of(7), MIB) is None


PROGRAM = """
import os, signal, sys
from pathlib import Path

Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))

from mesh_core import Actor, ProcDied, endpoint, this_host


class Hoarder(Actor):
    @endpoint
    def hoard(self):
        kept = []
        while True:
            kept.append(b"x" * 10_000_000)

    @endpoint
    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)


for end in ("hoard", "kill"):
    hoarder = this_host().spawn_procs().spawn("hoarder", Hoarder)
    try:
        getattr(hoarder, end).call_one().get()
    except ProcDied as died:
        print(end, died.signal, died.reason)
"""


def test_the_error_for_an_oom_killed_process_names_the_limit(limited: Path, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(script), str(limited)], capture_output=True, text=True, check=True
    )
    hoarded, killed = done.stdout.splitlines()
    assert hoarded.startswith("hoard 9 the kernel's OOM killer has chosen it: ")
    assert f"cgroup /{limited.name} is limited to 200 MiB; it has had up to 1" in hoarded
    assert killed == "kill 9 None"
