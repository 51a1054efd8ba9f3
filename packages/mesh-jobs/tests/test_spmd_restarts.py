"""Ranks of a script are restarted on their hosts after one of them has failed, as by torchrun."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from workers import is_alive, loopback_hosts

from mesh_core import ConfigError, SupervisionError
from mesh_core.testing import wait_until
from mesh_jobs import ScriptFailed, run_spmd
from mesh_jobs._spmd.launcher import SpmdRun

if TYPE_CHECKING:
    from mesh_core import HostMesh

HOST = socket.gethostname()
NAMES = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS")
# Each rank writes its environment to a file that is named after the round and the rank, and waits
# until all ranks of the round have done so. The code that differs between tests follows.
ROUND = """
import json, os, pathlib, signal, subprocess, sys, time
rank, count = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
folder = pathlib.Path(__file__).parent
file = folder / f"round-{count}.{rank}"
file.with_suffix(f".{rank}.tmp").write_text(json.dumps({**os.environ, "pid": os.getpid()}))
file.with_suffix(f".{rank}.tmp").rename(file)
ranks = range(int(os.environ["WORLD_SIZE"]))
while not all((folder / f"round-{count}.{other}").exists() for other in ranks):
    time.sleep(0.01)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def rounds_of(script: Path) -> list[list[dict[str, Any]]]:
    """Return the environments of the ranks in each round."""
    found: list[list[dict[str, Any]]] = []
    while files := sorted(script.parent.glob(f"round-{len(found)}.?")):
        found.append([json.loads(file.read_text()) for file in files])
    return found


def test_all_ranks_are_restarted_with_a_new_rendezvous(
    hosts: HostMesh, script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text(ROUND + "sys.exit(3) if (rank, count) == (1, 0) else None\n")
    assert run_spmd(hosts, script, max_restarts=2).get() == 0
    first, second = [
        [[env[name] for name in NAMES] for env in ranks] for ranks in rounds_of(script)
    ]
    assert first[0] == first[1]
    assert second[0] == second[1]
    (address, port, run_id, most), (address_then, port_then, run_id_then, most_then) = (
        first[0],
        second[0],
    )
    assert (address, run_id, most) == (address_then, run_id_then, most_then)
    assert port != port_then
    assert most == "2"
    assert [line for line in capfd.readouterr().err.splitlines() if line.startswith("mesh:")] == [
        f"mesh: rank 1 (mesh hosts=1 procs=0) failed first, with exit status 3 on {HOST}",
        "mesh: restarting all 2 ranks: restart 1 of 2, 1 left",
    ]


def test_the_first_failure_of_the_last_round_is_the_result(
    hosts: HostMesh, script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text(
        ROUND + "if rank == 1:\n    raise SystemExit(4 + count)\nsignal.pause()  # Never returns.\n"
    )
    assert run_spmd(hosts, script, max_restarts=2).get() == 6
    assert len(rounds_of(script)) == 3
    said = capfd.readouterr().err.splitlines()
    assert said[-1] == (
        "mesh: rank 1 (mesh hosts=1 procs=0) failed first, with exit status 6 "
        f"on {HOST} after 2 restarts"
    )
    assert said[-2] == "mesh: restarting all 2 ranks: restart 2 of 2, 0 left"


def test_a_checked_run_raises_the_failures_of_all_rounds(host: HostMesh, script: Path) -> None:
    told = {"message": "LookupError: no batch", "extraInfo": {"py_callstack": "Traceback: of it"}}
    script.write_text(
        "import json, os, signal\n"
        "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as file:\n"
        f"    json.dump({{'message': {told}}}, file)\n"
        "raise SystemExit(1)\n"
    )
    with pytest.raises(ScriptFailed) as caught:
        run_spmd(host, script, max_restarts=1, check=True).get()
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        killed, failed = error.rank_failures
        assert (killed.exit_code, killed.restart_count, killed.message) == (137, 0, "")
        assert (failed.rank, failed.host, failed.label) == (0, HOST, "mesh procs=0")
        assert (failed.exit_code, failed.restart_count) == (1, 1)
        assert (failed.exception_type, failed.message) == ("LookupError", "LookupError: no batch")
        assert failed.traceback == "Traceback: of it"
        assert str(error) == (
            f"rank 0 (mesh procs=0) failed first, with exit status 1 on {HOST} after 1 restart: "
            "LookupError: no batch\nTraceback: of it"
        )


def test_a_checked_run_that_succeeds_after_a_restart_raises_nothing(
    host: HostMesh, script: Path
) -> None:
    script.write_text(ROUND + "sys.exit(1 - count)")
    assert run_spmd(host, script, max_restarts=1, check=True).get() == 0


# Rank 1 of the first round ignores SIGTERM, as a rank in a collective may do, and so does its child
# process. The second round fails if either is alive.
STUBBORN = """
if count == 1:
    pids = json.loads((folder / "pids").read_text())
    sys.exit(any(pathlib.Path("/proc", str(pid)).exists() for pid in pids))
if rank == 0:
    while not (folder / "pids").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
(folder / "tmp").write_text(json.dumps([os.getpid(), child.pid]))
(folder / "tmp").rename(folder / "pids")
while True:
    signal.pause()
"""


def test_no_process_of_a_round_is_alive_in_the_next(hosts: HostMesh, script: Path) -> None:
    script.write_text(ROUND + STUBBORN)
    assert run_spmd(hosts, script, max_restarts=1).get() == 0
    assert len(rounds_of(script)) == 2


def test_the_output_of_all_rounds_is_kept(host: HostMesh, script: Path, tmp_path: Path) -> None:
    script.write_text(ROUND + "print('round', count)\nsys.exit(1 - count)\n")
    assert run_spmd(host, script, max_restarts=1, output_dir=tmp_path).get() == 0
    kept = tmp_path / "mesh/procs-0"
    assert (kept / "stdout.txt").read_text() == "round 0\nround 1\n"
    assert (kept / "exit_code.txt").read_text() == "0\n"


def test_a_given_port_is_used_in_all_rounds(host: HostMesh, script: Path) -> None:
    script.write_text(ROUND + "sys.exit(1 - count)")
    env = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29999"}
    assert run_spmd(host, script, max_restarts=1, env=env).get() == 0
    assert [ranks[0]["MASTER_PORT"] for ranks in rounds_of(script)] == ["29999"] * 2


def test_ranks_that_were_interrupted_are_not_restarted(hosts: HostMesh, script: Path) -> None:
    script.write_text(
        ROUND + "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "(folder / f'{rank}.ready').touch()\nsignal.pause()\n"
    )
    run = spmd_run(hosts, script, max_restarts=5)
    status = run.execution.in_background(run.run)
    wait_until(lambda: len(list(script.parent.glob("*.ready"))) == 2, 30)
    run.execution.signal(signal.SIGINT)
    assert status.get() == 128 + signal.SIGINT
    assert len(rounds_of(script)) == 1


def test_a_cancelled_run_is_not_restarted(hosts: HostMesh, script: Path) -> None:
    script.write_text(ROUND + "signal.pause()\n")
    run = spmd_run(hosts, script, max_restarts=5)
    status = run.execution.in_background(run.run)
    wait_until(lambda: len(list(script.parent.glob("round-0.?"))) == 2, 30)
    assert status.cancel()
    wait_until(lambda: not any(is_alive(env["pid"]) for env in rounds_of(script)[0]), 30)
    assert run.failures == []
    assert len(rounds_of(script)) == 1


def test_a_run_can_be_terminated_before_its_ranks_start(host: HostMesh, script: Path) -> None:
    script.write_text("import signal; signal.pause()")
    interrupted = spmd_run(host, script, max_restarts=5)
    interrupted.execution.signal(signal.SIGKILL)
    assert interrupted.run() == 128 + signal.SIGKILL
    ended = spmd_run(host, script, max_restarts=0)
    ended.execution.end()
    assert ended.run() == 128 + signal.SIGTERM


def test_a_lost_host_raises_an_error_and_no_rank_is_restarted(script: Path) -> None:
    script.write_text(ROUND + "signal.pause()\n")
    with loopback_hosts(2) as hosts:
        running = run_spmd(hosts, script, max_restarts=5)
        wait_until(lambda: len(list(script.parent.glob("round-0.?"))) == 2, 30)
        hosts.slice(hosts=1).shutdown().get()
        with pytest.raises(SupervisionError):
            running.get()
        (ranks,) = rounds_of(script)
        wait_until(lambda: not any(is_alive(env["pid"]) for env in ranks), 30)


@pytest.mark.parametrize("wrong", [-1, 1.5, "1", True, None])
def test_an_invalid_number_of_restarts_is_refused_at_the_call(host: HostMesh, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"max_restarts is .*: give a whole number, 0 or more"):
        run_spmd(host, "script.py", max_restarts=wrong)


def spmd_run(hosts: HostMesh, script: Path, *, max_restarts: int) -> SpmdRun:
    return SpmdRun(
        hosts,
        script,
        (),
        module=None,
        per_host=1,
        env=None,
        workdir=None,
        name="mesh",
        max_restarts=max_restarts,
    )


TRAINING = """
import os, pathlib, sys
import torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    checkpoint = pathlib.Path(__file__).with_name("checkpoint")
    step, total = torch.load(checkpoint) if checkpoint.exists() else (0, torch.zeros(1))
    print("resumed at", step, flush=True)
    while step < 4:
        if (dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"], step) == (1, "0", 2):
            raise LookupError("no batch for step 2")
        grad = torch.ones(1)
        dist.all_reduce(grad)
        total, step = total + grad, step + 1
        if dist.get_rank() == 0:
            torch.save((step, total), checkpoint)
        dist.barrier()
    print("total", int(total), flush=True)
    dist.destroy_process_group()

main()
"""


@pytest.mark.slow
def test_training_resumes_from_its_checkpoint_while_a_rank_waits_in_a_collective(
    host: HostMesh, script: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    script.write_text(TRAINING)
    run = run_spmd(host, script, per_host=2, max_restarts=1, output_dir=tmp_path)
    assert run.get() == 0
    kept = [(tmp_path / f"mesh/procs-{rank}/stdout.txt").read_text() for rank in range(2)]
    assert kept == ["resumed at 0\nresumed at 2\ntotal 8\n"] * 2
    said = capfd.readouterr().err
    report = said[said.index("mesh: rank 1 (mesh procs=1)") :].splitlines()
    assert report[0].endswith(f"on {HOST}: LookupError: no batch for step 2")
    assert report[1] == "Traceback (most recent call last):"
    assert any(f'File "{script}", line 14, in main' in line for line in report)


# Their values differ between runs, and between a store of torchrun's agent and one of rank 0.
INDIVIDUAL = {
    "pid",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_USE_AGENT_STORE",
}


@pytest.mark.timeout(300)
def test_the_rounds_match_torchrun(host: HostMesh, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    scripts = [tmp_path / "torchrun" / "script.py", tmp_path / "mesh" / "script.py"]
    for script in scripts:
        script.parent.mkdir()
        script.write_text(ROUND + "sys.exit(7) if rank == 1 else signal.pause()\n")
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    words = [sys.executable, "-m", "torch.distributed.run", *options, str(scripts[0])]
    # Without `env`, the C library adds LINES and COLUMNS, which are not in `os.environ`.
    env = dict(os.environ)
    torchrun = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    assert torchrun.returncode == 1, torchrun.stderr
    assert run_spmd(host, scripts[1], per_host=2, max_restarts=1).get() == 7
    of_torchrun, of_mesh = map(rounds_of, scripts)
    assert [len(ranks) for ranks in of_torchrun] == [len(ranks) for ranks in of_mesh] == [2, 2]
    for expected, actual in zip(chain(*of_torchrun), chain(*of_mesh), strict=True):
        added = {name for name in expected if name not in os.environ}
        assert added <= actual.keys()
        same = added - INDIVIDUAL
        assert {name: actual[name] for name in same} == {name: expected[name] for name in same}
    for rounds in (of_torchrun, of_mesh):
        assert len({env["TORCHELASTIC_RUN_ID"] for env in chain(*rounds)}) == 1
        assert len({env["TORCHELASTIC_ERROR_FILE"] for env in chain(*rounds)}) == 4
