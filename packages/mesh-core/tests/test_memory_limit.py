"""Processes with a memory limit: a warning close to it, and a death that names it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from workers import WorkerProcess

from mesh_core import Actor, BootstrapCommand, ProcDied, attach_to_workers, endpoint, this_host
from mesh_core._processes.byte_size import parse_memory_limit
from mesh_core._processes.memory_watch import MemoryWatch
from mesh_core._processes.process_trees import ProcessTrees
from mesh_core._system.kernel import parent_and_session
from mesh_core.testing import simulated, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mesh_core import ProcMesh

MIB = 1 << 20
LIMIT_S = 40.0
# More than an interpreter with Mesh needs, and little enough for several tests at a time.
LIMIT = "160MiB"
LIMIT_BYTES = 160 * MIB


def allocated(mib: int) -> bytes:
    """Return resident memory."""
    return b"x" * (mib * MIB)


def proportional_mib() -> int:
    with open("/proc/self/smaps_rollup") as rollup:
        return next(int(line.split()[1]) for line in rollup if line.startswith("Pss:")) // 1024


def grow_forever() -> None:
    kept = []
    while True:
        kept.append(allocated(1))


class Hoarder(Actor):
    def __init__(self) -> None:
        self.kept: list[bytes] = []

    @endpoint
    def grow(self) -> None:
        grow_forever()

    @endpoint
    def allocate(self, mib: int) -> int:
        return len(allocated(mib))

    @endpoint
    def fill(self, mib: int) -> None:
        """Use this much memory in total."""
        self.kept = [allocated(max(mib - proportional_mib(), 0))]

    @endpoint
    def release(self) -> None:
        self.kept = []

    @endpoint
    def grow_child(self, method: str) -> None:
        context: Any = multiprocessing.get_context(method)
        child = context.Process(target=grow_forever)
        child.start()
        child.join()

    @endpoint
    def share_with_children(self, mib: int, count: int) -> int:
        """Let forked child processes use the same memory; return the resident memory of all."""
        self.kept = [allocated(mib)]
        read, write = os.pipe()
        pids = []
        for _ in range(count):
            pid = os.fork()
            if pid == 0:
                # One byte of each page: the pages become resident in the child process.
                total = sum(self.kept[0][:: os.sysconf("SC_PAGESIZE")])
                os.write(write, b"x" if total else b"")
                signal.pause()
            pids.append(pid)
        for _ in pids:
            os.read(read, 1)
        return (1 + len(pids)) * mib

    @endpoint
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def spawned() -> Iterator[Callable[..., ProcMesh]]:
    """Spawn processes with a limit, and stop them at the end."""
    meshes: list[ProcMesh] = []

    def spawn(**options: Any) -> ProcMesh:
        meshes.append(this_host().spawn_procs(**{"memory_limit": LIMIT, **options}))
        return meshes[-1]

    yield spawn
    for mesh in meshes:
        mesh.stop().get(LIMIT_S)


def death(call: Any) -> ProcDied:
    with pytest.raises(ProcDied) as caught:
        call.get(LIMIT_S)
    return caught.value


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if "of its memory limit" in text]


def test_a_process_that_grows_is_killed_at_its_limit(
    spawned: Callable[..., ProcMesh],
) -> None:
    procs = spawned(per_host={"gpus": 2}, name="trainers")
    hoarders = procs.spawn("hoarders", Hoarder)
    died = death(hoarders[1].grow.call_one())
    assert (died.rank, died.signal, died.mesh_name) == (1, 9, "hoarders")
    assert died.pid is not None
    assert died.host
    found = re.fullmatch(
        r"it exceeded its memory limit of 160 MiB: it had (\d+) MiB; "
        r"it executed (\w+) at (.+):\d+",
        died.reason,
    )
    assert found is not None, died.reason
    assert int(found[1]) >= 160
    # The line allocates, or keeps the allocated memory.
    assert found[2] in ("allocated", "grow_forever")
    assert found[3] == __file__
    assert "it exceeded its memory limit of 160 MiB" in str(died)
    # The other rank is not affected.
    assert hoarders[0].allocate.call_one(1).get(LIMIT_S) == MIB


def test_a_process_is_killed_for_one_huge_allocation(spawned: Callable[..., ProcMesh]) -> None:
    hoarder = spawned().spawn("hoarder", Hoarder)
    died = death(hoarder.allocate.call_one(2000))
    assert died.reason is not None
    assert died.reason.startswith("it exceeded its memory limit of 160 MiB: it had ")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_error_names_the_largest_child_process(
    spawned: Callable[..., ProcMesh], method: str
) -> None:
    hoarder = spawned().spawn("hoarder", Hoarder)
    died = death(hoarder.grow_child.call_one(method))
    assert died.reason is not None
    found = re.search(
        r"of 160 MiB: it had \d+ MiB together with [12] child process(es)?; "
        r"the largest is \S+ \(pid (\d+)\) with (\d+) MiB; it executed grow_child at .+$",
        died.reason,
    )
    assert found is not None, died.reason
    assert int(found[2]) != died.pid
    assert int(found[3]) > 80
    wait_until(lambda: not os.path.exists(f"/proc/{found[2]}"))


def test_a_daemonized_descendant_stays_in_the_process_tree() -> None:
    # The innermost process leads its own session.
    inner = "sh -c 'setsid sleep 600 & wait' & wait"
    with subprocess.Popen(["sh", "-c", inner], start_new_session=True) as root:
        trees = ProcessTrees()
        trees.add(root.pid)

        def sleeper() -> int | None:
            pids = trees.look(0.0)[root.pid]
            return next((pid for pid in pids if name_of(pid) == "sleep"), None)

        leaf = wait_until(sleeper)
        assert leaf is not None
        place = parent_and_session(leaf)
        assert place is not None
        assert place[1] == leaf
        os.kill(place[0], signal.SIGKILL)
        wait_until(lambda: parent_and_session(leaf) != place)
        for _ in range(50):
            assert leaf in trees.look(0.0)[root.pid]
        os.kill(leaf, signal.SIGKILL)
        root.kill()
    trees.remove(root.pid)
    assert trees.look(0.0) == {}


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_the_program_is_warned_once_per_crossing_of_the_threshold(
    spawned: Callable[..., ProcMesh], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mesh_core")
    procs = spawned(per_host={"gpus": 2}, name="trainers")
    hoarders = procs.spawn("hoarders", Hoarder)
    hoarders[1].fill.call_one(152).get(LIMIT_S)
    wait_until(lambda: warnings_in(caplog))
    pid = hoarders[1].pid.call_one().get(LIMIT_S)
    (text,) = warnings_in(caplog)
    found = re.fullmatch(
        rf"trainers{{gpus: 1/2}} \(rank 1, pid {pid} on \S+\) may be killed soon: "
        r"it uses 9\d% of its memory limit of 160 MiB: 1[45]\d MiB",
        text,
    )
    assert found is not None, text

    def is_warned_again() -> bool:
        hoarders[1].release.call_one().get(LIMIT_S)
        hoarders[1].fill.call_one(152).get(LIMIT_S)
        return len(warnings_in(caplog)) > 1

    # The release has to last until it is noticed.
    wait_until(is_warned_again, LIMIT_S)


def test_memory_shared_with_child_processes_is_counted_once(
    spawned: Callable[..., ProcMesh],
) -> None:
    procs = spawned()
    hoarder = procs.spawn("hoarder", Hoarder)
    assert hoarder.share_with_children.call_one(80, 4).get(LIMIT_S) == 400
    # A measurement of all processes is complete once another process has been found and killed.
    other = spawned().spawn("other", Hoarder)
    death(other.grow.call_one())
    assert hoarder.allocate.call_one(1).get(LIMIT_S) == MIB


def test_a_replaced_rank_keeps_the_limit(spawned: Callable[..., ProcMesh]) -> None:
    procs = spawned(per_host={"gpus": 2})
    hoarders = procs.spawn("hoarders", Hoarder)
    for _ in range(2):
        died = death(hoarders[0].grow.call_one())
        assert died.reason is not None
        assert "its memory limit of 160 MiB" in died.reason
        procs.replace(0)
    assert hoarders[0].allocate.call_one(1).get(LIMIT_S) == MIB


def test_a_process_with_a_custom_bootstrap_command_is_limited(
    spawned: Callable[..., ProcMesh],
) -> None:
    command = BootstrapCommand.default().with_env({"MARK": "yes"})
    hoarder = spawned(bootstrap_command=command).spawn("hoarder", Hoarder)
    died = death(hoarder.grow.call_one())
    assert died.reason is not None
    assert "its memory limit of 160 MiB" in died.reason


def test_a_process_without_a_limit_may_use_more(spawned: Callable[..., ProcMesh]) -> None:
    hoarder = spawned(memory_limit=None).spawn("hoarder", Hoarder)
    assert hoarder.allocate.call_one(300).get(LIMIT_S) == 300 * MIB


def test_processes_of_other_hosts_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mesh_core")
    with WorkerProcess() as worker:
        hosts = attach_to_workers([worker.address])
        procs = hosts.spawn_procs({"gpus": 1}, memory_limit=LIMIT_BYTES, name="far")
        hoarders = procs.spawn("hoarders", Hoarder)
        hoarders.fill.call(152).get(LIMIT_S)
        wait_until(lambda: warnings_in(caplog))
        assert warnings_in(caplog)[0].startswith("far{")
        died = death(hoarders.grow.call())
        assert died.reason is not None
        assert "it exceeded its memory limit of 160 MiB" in died.reason


def test_a_simulated_cluster_accepts_a_limit() -> None:
    with simulated(seed=1):
        hoarder = this_host().spawn_procs(memory_limit="1GiB").spawn("hoarder", Hoarder)
        assert hoarder.allocate.call_one(1).get() == MIB


@pytest.mark.parametrize(
    ("limit", "size"),
    [
        ("8GiB", 8 << 30),
        (" 1.5 gib ", 3 << 29),
        ("100 MB", 100_000_000),
        (1 << 30, 1 << 30),
        ("1048576KiB", 1 << 30),
    ],
)
def test_sizes_with_units_are_parsed(limit: int | str, size: int) -> None:
    assert parse_memory_limit(limit) == size


@pytest.mark.parametrize("limit", ["lots", "", "8", "GiB", "8 XiB", "-1GiB", True, 8.0, b"8GiB"])
def test_an_invalid_size_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match=r'is not a size: give bytes as an int, .* as "8GiB"'):
        this_host().spawn_procs(memory_limit=limit)


@pytest.mark.parametrize("limit", [8, 0, -1, "8B", "1MiB", 1 << 61])
def test_an_out_of_range_limit_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match=r"bytes: give 16 MiB to 1 EiB .* such as \"8GiB\""):
        this_host().spawn_procs(memory_limit=limit)


# The kernel may be faster than the watch. The actor is in a cgroup that has less memory than the
# allocation needs, so either of them kills its process. Nothing else is in the cgroup: while the
# memory of a process is being freed, the kernel may choose another one, too.
RACE = """
import os, sys
from pathlib import Path

from mesh_core import Actor, ProcDied, endpoint, this_host


class Hoarder(Actor):
    @endpoint
    def hoard(self, cgroup):
        Path(cgroup, "cgroup.procs").write_text(str(os.getpid()))
        return len(b"x" * (1 << 30))


for limit in ("64MiB", "8GiB"):
    hoarder = this_host().spawn_procs(memory_limit=limit).spawn("hoarder", Hoarder)
    try:
        hoarder.hoard.call_one(sys.argv[1]).get()
    except ProcDied as died:
        print(died.signal, died.reason)
"""


def test_the_error_for_a_kill_by_the_kernel_names_the_limit(limited: Path, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(RACE)
    command = [sys.executable, str(script), str(limited)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    low, high = done.stdout.splitlines()
    assert low.startswith("9 it exceeded its memory limit of 64 MiB: it had ")
    assert high.startswith("9 the kernel's OOM killer has chosen it: ")
    assert high.endswith("; its memory limit is 8.0 GiB")


def test_a_kernel_kill_above_the_limit_is_attributed_to_the_limit() -> None:
    watch = MemoryWatch(lambda _pid, _text: None, lambda _pid, _why: None)
    watch.add(os.getpid(), 100 * MIB)
    cause = "the kernel's OOM killer has chosen it"
    assert watch.limit_cause(os.getpid(), cause, 120 * MIB) == (
        f"it exceeded its memory limit of 100 MiB: it had 120 MiB; {cause}"
    )
    below = watch.limit_cause(os.getpid(), cause, 90 * MIB)
    assert below == f"{cause}; its memory limit is 100 MiB"
    watch.forget(os.getpid())
    assert watch.limit_cause(os.getpid(), cause, 120 * MIB) == cause


def test_memory_is_not_measured_without_a_limit() -> None:
    watch = MemoryWatch(lambda _pid, _text: None, lambda _pid, _why: None)
    watch.add(os.getpid(), None)
    assert watch.look_at is None
