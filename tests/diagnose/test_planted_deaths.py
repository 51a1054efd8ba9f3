"""Ranks on two hosts that exceed their memory, and the reports that have to name them."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import torch

from mesh_core.testing import wait_until
from tests.diagnose.planted_deaths import LIMITS, plan
from tests.hosts.cluster import WorkerCluster
from tests.hosts.memory_cgroup import create_memory_cgroup
from tests.hosts.world import Host
from tools.workspace import ROOT

PROGRAM = Path(__file__).with_name("planted_deaths.py")
LIMIT_S = 90.0
#: How long after a rank begins to use memory its death has to be reported, in seconds.
REPORT_S = 10.0
BY_KERNEL = ("kernel", "kernel_below_limit")
DEATHS = ("growth", "huge", "loader", "shared", *BY_KERNEL)
#: Variants of other deaths, which are not tested at every change.
SLOW = ("huge", "loader", "shared", "kernel_below_limit")
#: Enough for all processes of a host except the one that grows.
CGROUP_BYTES = 2 << 30


@contextmanager
def limited(host: Host) -> Iterator[str]:
    """Put the processes of a host into a memory cgroup, as a scheduler does; return its name."""
    load_into_page_cache(Path(torch.__file__).parent / "lib")
    try:
        folder = create_memory_cgroup(f"mesh-diagnose-{os.getpid()}", CGROUP_BYTES)
    except OSError as error:
        pytest.skip(f"no memory cgroup can be created: {error}")
    try:
        move(host.pids(), folder)
        yield folder.name
    finally:
        wait_until(lambda: is_emptied(folder), LIMIT_S)
        folder.rmdir()


def is_emptied(folder: Path) -> bool:
    """Move the processes of a cgroup out of it; return whether it is empty.

    A process may fork before it is moved, so this has to be repeated.
    """
    move([int(pid) for pid in (folder / "cgroup.procs").read_text().split()], folder.parent)
    return not (folder / "cgroup.procs").read_text()


def load_into_page_cache(folder: Path) -> None:
    """Read all files, so that their pages are charged to the cgroup of this process.

    If the pages of PyTorch's libraries were charged to a cgroup that reaches its limit, the kernel
    would free and reload them for minutes before it kills a process.
    """
    for path in folder.glob("*.so*"):
        with path.open("rb") as file:
            while file.read(16 << 20):
                pass


def move(pids: Sequence[int], folder: Path) -> None:
    """Move processes to a cgroup."""
    for pid in pids:
        with suppress(ProcessLookupError):
            (folder / "cgroup.procs").write_text(str(pid))


def line_of(death: str) -> int:
    """Return the number of the line that uses the memory."""
    lines = PROGRAM.read_text().splitlines()
    (found,) = [
        number for number, line in enumerate(lines, 1) if line.endswith(f"# death: {death}")
    ]
    return found


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "death",
    [pytest.param(one, marks=pytest.mark.slow if one in SLOW else ()) for one in DEATHS],
)
def test_the_rank_and_the_line_are_named(
    cluster: WorkerCluster, death: str, outcomes: list[tuple[str, ...]]
) -> None:
    cluster.repair()
    seed = DEATHS.index(death) + 1
    rank = plan(seed)
    host = cluster.hosts[rank // 2]
    with ExitStack() as stack:
        cgroup = stack.enter_context(limited(host)) if death in BY_KERNEL else ""
        arguments = [death, str(seed), cluster.keys, *cluster.addresses()]
        ran = cluster.client.run(
            [sys.executable, str(PROGRAM), *arguments], check=False, timeout=LIMIT_S, cwd=ROOT
        )
    output = ran.stdout + ran.stderr
    found = [line for line in ran.stdout.splitlines() if line.startswith("DIED ")]
    assert found, output
    died = json.loads(found[0].removeprefix("DIED "))
    assert (died["rank"], died["host"]) == (rank, host.name), output
    reason = died["reason"]
    where = "-"
    if death in BY_KERNEL:
        assert f"{cgroup} is limited to 2.0 GiB" in reason, output
        assert ("its memory limit is 4.0 GiB" in reason) == (death in LIMITS), output
    else:
        where = f"{PROGRAM.name}:{line_of(death)}"
        assert "it exceeded its memory limit of 600 MiB" in reason, output
        assert re.search(rf"it executed \S+ at \S+{where}$", reason), output
    assert ("child process" in reason) == (death == "loader"), output
    assert died["after_s"] < REPORT_S, output
    kind = "killed by the kernel" if death in BY_KERNEL else "over its limit"
    outcomes.append(
        (death, str(seed), f"rank {rank} of train", kind, where, f"{died['after_s']:.2f} s")
    )
