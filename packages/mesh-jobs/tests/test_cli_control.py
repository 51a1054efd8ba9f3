"""The commands that show and terminate processes of hosts while a program uses them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Folder
from workers import END_LIMIT_S, is_alive

from mesh_core.testing import wait_until

pytest.importorskip("typer")
pytest.importorskip("grpc")


TAILS = """
import subprocess
from mesh_core import Actor, endpoint

class Tail(Actor):
    @endpoint
    def begin(self):
        self.process = subprocess.Popen(["tail", "-f", "/dev/null"])

    @endpoint
    def wait(self):
        return self.process.wait()

tails = hosts.spawn_procs({"n": 1}).spawn("tails", Tail)
tails.begin.call().get()
print("begun", flush=True)
tails.wait.call().get()
"""


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A folder in which a job of two hosts is applied."""
    folder = Folder(tmp_path_factory.mktemp("applied"))
    folder.said("apply")
    yield folder
    folder.said("kill")


@pytest.fixture
def running(applied: Folder) -> Iterator[subprocess.Popen[str]]:
    """A program that uses both hosts."""
    applied.write("tail.py", TAILS)
    with applied.start("attach", "tail.py") as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        yield program
        program.kill()


def test_processes_of_a_program_are_listed_and_stopped_and_the_hosts_remain(
    applied: Folder, running: subprocess.Popen[str]
) -> None:
    hosts = applied.json("ps")
    assert [(one["mesh"], one["rank"], one["error"]) for one in hosts] == [
        ("trainers", 0, None),
        ("trainers", 1, None),
    ]
    owner = hosts[0]["host"]["program"]["owner"]
    assert owner.endswith(f"(process {running.pid})")
    tails = [
        next(one for one in host["processes"] if one["command"] == "tail -f /dev/null")
        for host in hosts
    ]
    assert [(one["kind"], one["owner"]) for one in tails] == [("child", owner)] * 2
    shown = applied.said("ps", "--host", "1")
    assert str(tails[1]["pid"]) in shown
    assert str(tails[0]["pid"]) not in shown
    doctor = applied.said("doctor")
    assert f"used by {owner}: pairs of hosts can be checked after it has ended" in doctor
    assert [one["healthy"] for one in applied.json("doctor")["hosts"]] == [True, True]
    assert "  MainThread (" in applied.said("stacks", "0")
    shown = applied.said("stacks", "hosts=1")
    assert ("{hosts: 1/2" in shown, "{hosts: 0/2" in shown) == (True, False)
    told = applied.json("stop", "--pid", str(tails[0]["pid"]), "0")
    assert told[0]["process"]["pid"] == tails[0]["pid"]
    wait_until(lambda: not is_alive(tails[0]["pid"]))
    assert "has ended in" in applied.said("stop", "1")
    assert running.wait(END_LIMIT_S) != 0
    run = applied.run("stop")
    assert run.returncode == 1
    assert run.stderr == (
        "mesh: trainers host 0, trainers host 1: the host serves no program: there is nothing to "
        "stop\n"
    )
    assert applied.said("exec", "--host", "1", "echo", "again") == "[trainers] again\n"


def test_logs_of_all_hosts_are_followed_until_ctrl_c(applied: Folder) -> None:
    with applied.start("logs", "--follow", "--json", "-n", "1") as following:
        assert following.stdout is not None
        before = [json.loads(following.stdout.readline()) for _ in range(2)]
        assert {one["host"] for one in before} == {0, 1}
        applied.said("exec", "true")
        serving: set[int] = set()
        # Earlier sessions may end only now, and their lines are printed as well.
        while serving != {0, 1}:
            one = json.loads(following.stdout.readline())
            if one["line"].startswith("mesh worker serves a job of"):
                serving.add(one["host"])
        following.send_signal(signal.SIGINT)
        assert following.wait(END_LIMIT_S) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ps", "--host", "2"], "mesh 'trainers' has no host 2: give 0 to 1"),
        (["stacks", "gpus"], "'gpus' is neither a host nor a rank: write N, or DIM=N,DIM=N"),
        (["stacks", "gpus=9"], "no process of a program has rank gpus=9: mesh ps lists them"),
        (["stacks", "--pid", "1"], "the job has 2 hosts: give the host of the process"),
        (["stop", "--pid", "1", "0"], "trainers host 0: the worker of"),
    ],
)
def test_unknown_hosts_ranks_and_processes_are_reported_on_one_line(
    applied: Folder, arguments: list[str], said: str
) -> None:
    run = applied.run(*arguments)
    assert run.returncode == 1
    assert run.stderr.startswith(f"mesh: {said}")
    assert len(run.stderr.splitlines()) == 1


def test_the_output_of_a_lost_worker_is_still_shown(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.said("apply")
    try:
        (_, lost) = folder.json("ps")
        os.kill(lost["processes"][0]["pid"], signal.SIGKILL)
        wait_until(lambda: folder.json("status")["hosts"][1]["state"] == "ended", END_LIMIT_S)
        run = folder.run("logs", "--follow", "--host", "1")
        assert run.returncode == 0
        assert "mesh: cannot follow: it is ended" in run.stderr
        assert "[trainers hosts=1] mesh worker serves tcp://" in run.stdout
        run = folder.run("ps")
        assert run.returncode == 1
        assert run.stderr.startswith("mesh: trainers host 1: it is ended")
        assert "trainers  0" in run.stdout
    finally:
        folder.said("kill")
