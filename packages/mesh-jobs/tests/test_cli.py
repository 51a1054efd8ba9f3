"""The command `mesh`, as users run it."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command import JOB, Folder
from workers import END_LIMIT_S

import mesh_jobs
from mesh_core.testing import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("typer")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A folder in which no job is applied."""
    folder = Folder(tmp_path)
    yield folder
    folder.run("kill")


@pytest.fixture(scope="module")
def applied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A folder in which a job of two hosts is applied."""
    folder = Folder(tmp_path_factory.mktemp("applied"))
    folder.said("apply")
    yield folder
    folder.said("kill")


def test_a_job_is_planned_applied_shown_and_killed(folder: Folder) -> None:
    assert "mesh_jobs.worker" in folder.said("plan")
    assert "2 of 2 hosts up" in folder.said("apply")
    assert folder.json("status")["state"] == "running"
    again = folder.json("apply")
    assert [host["state"] for host in again["hosts"]] == ["running"] * 2
    assert [one["context"] for one in folder.json("contexts")] == ["default"]
    assert "were released" in folder.said("kill")
    assert folder.json("contexts") == []


def test_apply_reports_a_different_job_and_replaces_it_on_request(
    folder: Folder,
) -> None:
    folder.said("apply", "--no-wait")
    run = folder.run("apply", "job.py:two")
    assert run.returncode == 1
    expected = "mesh: the job of context 'default' differs from the requested job:"
    assert run.stderr.startswith(expected)
    assert "Traceback" not in run.stderr
    folder.said("apply", "job.py:two", "--replace")
    assert {host["mesh"] for host in folder.json("status")["hosts"]} == {"trainers", "readers"}
    run = folder.run("exec", "--", "true")
    assert run.returncode == 125
    assert run.stderr == "mesh: the job has the meshes trainers, readers: choose one with --mesh\n"
    assert folder.said("exec", "--mesh", "readers", "echo $MESH_SIZE_HOSTS") == (
        "[readers hosts=0] 1\n"
    )


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["status"], 1, "no job is applied in"),
        (["exec", "true"], 125, "no job is applied in"),
        (["apply", "none.py"], 1, "there is no file 'none.py': give the file that defines the job"),
        (["apply", "no_such_module"], 1, "'no_such_module' cannot be imported"),
        (["apply", "job.py:other"], 1, "job.py defines no 'other'"),
        (["apply", "job.py:number"], 1, "'number' of job.py is a int: it must be a job"),
        (["apply", "bad.py"], 1, "bad.py fails on line 2: ZeroDivisionError: division by zero"),
        (["forward", "x"], 125, "'x' is not a port: write PORT or LOCAL:PORT"),
        (["exec", "-e", "x", "true"], 125, "'x' is not a variable: write NAME=VALUE"),
        (["exec"], 125, "give either a command or --script"),
    ],
)
def test_expected_errors_are_printed_on_one_line(
    folder: Folder, arguments: list[str], status: int, said: str
) -> None:
    folder.write("bad.py", "\n1 / 0\n")
    run = folder.run(*arguments)
    assert run.returncode == status
    assert run.stderr.startswith(f"mesh: {said}")
    assert len(run.stderr.splitlines()) == 1
    assert run.stdout == ""


def test_an_error_is_json_with_the_json_option(folder: Folder) -> None:
    told = folder.json("status")["error"]
    assert told["type"] == "JobError"
    assert told["message"].startswith("no job is applied in")


def test_exec_prefixes_lines_stores_output_and_returns_the_exit_status(applied: Folder) -> None:
    run = applied.run("exec", "-o", "kept", "echo at $MESH_RANK_HOSTS; exit $((MESH_RANK_HOSTS*3))")
    assert run.returncode == 3
    assert sorted(run.stdout.splitlines()) == ["[trainers hosts=0] at 0", "[trainers hosts=1] at 1"]
    assert (applied.path / "kept/trainers/hosts-1/stdout.txt").read_text() == "at 1\n"


def test_exec_passes_options_to_the_command_unchanged(applied: Folder) -> None:
    assert applied.said("exec", "-H", "1", "echo", "-n", "--json") == "[trainers] --json\n"


def test_exec_runs_a_script_from_stdin(applied: Folder) -> None:
    run = applied.said("exec", "--host", "0", "--script", "-", stdin="x=4\necho ${x}2\n")
    assert run == "[trainers] 42\n"


def test_exec_reports_the_output_of_each_rank_as_json(applied: Folder) -> None:
    run = applied.run("exec", "--json", "--per-host", "gpus=2", "echo $MESH_RANK_GPUS")
    *lines, last = map(json.loads, run.stdout.splitlines())
    assert last == {"exit_codes": [0, 0, 0, 0]}
    assert {(one["rank"]["hosts"], one["rank"]["gpus"], one["line"]) for one in lines} == {
        (host, gpu, str(gpu)) for host in (0, 1) for gpu in (0, 1)
    }


def test_an_unknown_host_is_reported(applied: Folder) -> None:
    run = applied.run("exec", "--host", "2", "true")
    assert (run.returncode, run.stderr) == (
        125,
        "mesh: mesh 'trainers' has no host 2: give 0 to 1\n",
    )


def test_ctrl_c_reaches_the_command_on_all_ranks(applied: Folder) -> None:
    line = "trap 'echo interrupted; exit 4' INT; echo begun; while :; do sleep 0.05; done"
    with applied.start("exec", line) as running:
        assert running.stdout is not None
        assert [running.stdout.readline()[-6:] for _ in range(2)] == ["begun\n"] * 2
        running.send_signal(signal.SIGINT)
        said = running.stdout.read()
        assert running.wait(END_LIMIT_S) == 4
    assert sorted(said.splitlines()) == [f"[trainers hosts={at}] interrupted" for at in (0, 1)]


def test_spmd_runs_a_script_from_the_current_folder(applied: Folder) -> None:
    applied.write("train.py", "import os, sys; print(os.environ['RANK'], sys.argv[1:])\n")
    said = applied.said("spmd", "--per-host", "2", "train.py", "--lr", "1")
    assert sorted(line.split("] ")[1] + "]" for line in said.splitlines()) == [
        f"{rank} ['--lr', '1']]" for rank in range(4)
    ]
    applied.write("bad.py", "raise SystemExit(9)\n")
    run = applied.run("spmd", "bad.py")
    assert run.returncode == 9
    assert "failed first, with exit status 9" in run.stderr


def test_spmd_restarts_the_ranks(applied: Folder) -> None:
    applied.write(
        "flaky.py",
        "import os; count = int(os.environ['TORCHELASTIC_RESTART_COUNT']); print(count)\n"
        "raise SystemExit(9 - 9 * count if os.environ['RANK'] == '1' else 0)\n",
    )
    run = applied.run("spmd", "--max-restarts", "1", "--json", "flaky.py")
    assert run.returncode == 0
    assert "mesh: restarting all 2 ranks: restart 1 of 1, 0 left\n" in run.stderr
    last = json.loads(run.stdout.splitlines()[-1])
    assert last["exit_code"] == 0
    assert [(one["rank"], one["exit_code"]) for one in last["failures"]] == [(1, 9)]
    refused = applied.run("spmd", "--max-restarts", "-1", "flaky.py")
    assert refused.returncode == 2
    assert "--max-restarts" in refused.stderr


def test_shell_runs_in_a_terminal_on_the_host(applied: Folder) -> None:
    run = applied.run("shell", "--host", "1", "--", "sh", "-c", "test -t 0 && echo tty; exit 5")
    assert (run.returncode, run.stdout.strip()) == (5, "tty")


def test_forward_connects_to_a_port_of_the_command_that_it_runs(applied: Folder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    serve = f"echo served > a; exec python -um http.server -b 127.0.0.1 {port}"
    arguments = ["--json", "--host", "1", "-w", str(applied.path), f"0:{port}", "sh", "-c", serve]
    with applied.start("forward", *arguments) as forward:
        assert forward.stdout is not None
        address = json.loads(forward.stdout.readline())["listening"]
        assert "Serving HTTP" in forward.stdout.readline()
        with urllib.request.urlopen(f"http://{address}/a", timeout=END_LIMIT_S) as answer:
            assert answer.read() == b"served\n"
        forward.send_signal(signal.SIGINT)
        assert forward.wait(END_LIMIT_S) in (0, 130)


def test_commands_run_on_hosts_that_a_program_uses(applied: Folder) -> None:
    applied.write("use.py", "import time; print('begun', flush=True); time.sleep(600)")
    with applied.start("attach", "use.py") as other:
        assert other.stdout is not None
        assert "begun" in other.stdout.readline()
        assert applied.said("exec", "--host", "0", "echo other").endswith("other\n")
        run = applied.run("attach", "--timeout", "0.5", "use.py")
        assert run.returncode == 125
        assert run.stderr.startswith("mesh: the hosts of mesh 'trainers' cannot be used: ")
        assert f"(process {other.pid})" in run.stderr
        assert len(run.stderr.splitlines()) == 1
        other.send_signal(signal.SIGINT)
        other.wait(END_LIMIT_S)


def test_attach_runs_a_program_with_the_hosts(applied: Folder) -> None:
    program = "print(dict(hosts.extent), trainers == state.trainers, job.spec.name)"
    assert applied.said("attach", stdin=program) == "{'hosts': 2} True demo\n"
    applied.write("use.py", "import sys; print(__name__, sys.argv, len(hosts))")
    assert applied.said("attach", "use.py", "-x") == "__main__ ['use.py', '-x'] 2\n"


def test_logs_prints_the_output_of_one_worker(applied: Folder) -> None:
    told = applied.json("logs", "--host", "1")
    assert (told["mesh"], told["host"]) == ("trainers", 1)
    assert any("listens" in line or "serves" in line for line in told["lines"])
    assert len(applied.json("logs", "--lines", "1")["lines"]) == 1


def test_doctor_measures_each_pair_of_hosts(applied: Folder) -> None:
    run = applied.run("doctor", "--megabytes", "1")
    assert (run.returncode, run.stdout.splitlines()[-1]) == (0, "no problems found")
    told = applied.json("doctor")
    assert told["job"] == []
    (mesh,) = told["meshes"]
    assert [(pair["from"], pair["to"]) for pair in mesh["pairs"]] == [(0, 1), (1, 0)]
    assert all(pair["bytes_per_s"] > 0 and pair["latency_s"] > 0 for pair in mesh["pairs"])
    assert all(abs(host["clock_ahead_s"]) < 1 for host in mesh["hosts"])


def test_doctor_names_a_dead_worker(folder: Folder) -> None:
    folder.said("apply")
    report = json.loads(next(folder.path.glob(".mesh/default/workers/*-1.json")).read_text())
    os.kill(report["pid"], signal.SIGKILL)
    wait_until(lambda: folder.run("doctor", "--megabytes", "0").returncode == 1)
    said = folder.run("doctor", "--megabytes", "0").stdout
    assert said.strip().startswith("trainers host 1: ")
    assert "see mesh logs" in said


def test_run_prints_the_output_of_a_client_script_and_returns_its_status(folder: Folder) -> None:
    folder.write(
        "inside.py",
        "import sys\nfrom job import job\n"
        "print(job.state(timeout=30).trainers.extent, *sys.argv[1:])\nsys.exit(3)\n",
    )
    done = folder.run("run", "inside.py", "--lr", "2")
    assert done.stdout == "{hosts: 2} --lr 2\n"
    assert done.returncode == 3, done.stderr
    assert folder.run("logs", "--client").stdout == done.stdout
    assert folder.run("wait").returncode == 3
    folder.run("kill")


def test_a_client_script_keeps_running_after_ctrl_c(folder: Folder) -> None:
    folder.write("inside.py", "import signal\nprint('begun', flush=True)\nsignal.pause()\n")
    running = folder.start("run", "inside.py")
    assert running.stdout is not None
    assert running.stdout.readline() == "begun\n"
    running.send_signal(signal.SIGINT)
    assert "keeps running" in running.communicate(timeout=END_LIMIT_S)[1]
    assert running.returncode == 128 + signal.SIGINT
    status = json.loads(folder.run("status", "--json").stdout)
    assert (status["state"], status["exit_code"]) == ("running", None)
    folder.run("kill")
    assert not (folder.path / ".mesh").exists()


def test_a_job_is_resized_and_its_events_are_listed(folder: Folder) -> None:
    folder.said("apply")
    assert len(folder.json("resize", "3")["hosts"]) == 3
    told = folder.json("events")
    assert [one["kind"] for one in told][-1] == "resized"
    assert [one["at"] for one in told] == sorted(one["at"] for one in told)
    run = folder.run("wait", "--timeout", "0.2")
    assert (run.returncode, run.stderr) == (
        1,
        "mesh: the job is still running after 0.2 s: wait longer, or kill it\n",
    )


def test_a_named_context_is_found_from_another_folder(folder: Folder, tmp_path: Path) -> None:
    folder.write("job.py", JOB.replace('name="demo"', 'name="demo", context="named"'))
    folder.said("apply", "--no-wait")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    there = Folder(elsewhere)
    there.environment = folder.environment
    assert there.json("status", "-c", "named")["context"] == "named"
    there.said("kill", "-c", "named")
    wait_until(lambda: folder.json("contexts") == [])


def test_other_packages_add_commands(folder: Folder) -> None:
    folder.write(
        "more.py",
        "import typer\n"
        "def hello(name: str) -> None:\n    print('hello', name)\n"
        "group = typer.Typer()\n"
        "@group.command()\ndef one() -> None:\n    print('one')\n"
        "@group.command()\ndef two() -> None:\n    print('two')\n",
    )
    metadata = folder.path / "more-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: more\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[mesh.commands]\nhello = more:hello\ngroup = more:group\nbroken = missing:x\n"
    )
    folder.environment["PYTHONPATH"] = str(folder.path)
    assert folder.said("hello", "you") == "hello you\n"
    assert folder.said("group", "two") == "two\n"
    run = folder.run("broken")
    assert run.returncode == 1
    assert "the command 'broken' of missing:x cannot be loaded: ModuleNotFoundError" in run.stderr
    assert folder.json("contexts") == []


def test_a_command_of_a_missing_package_names_the_package(folder: Folder) -> None:
    # The program sees no entry points, as if no other package were installed.
    code = "import importlib.metadata as found\nfound.entry_points = lambda **_: []\n"
    folder.write("sitecustomize.py", code)
    folder.environment["PYTHONPATH"] = os.pathsep.join(
        [str(folder.path), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    run = folder.run("mount", "project", "--watch")
    assert run.returncode == 1
    assert run.stderr == "mesh: mesh mount comes with torchmesh-fs: pip install torchmesh-fs\n"
    run = folder.run("top")
    assert run.returncode == 1
    assert (
        run.stderr
        == "mesh: mesh top comes with torchmesh-telemetry: pip install 'torchmesh-telemetry[top]'\n"
    )


def test_versions_of_the_installed_packages_are_printed(folder: Folder) -> None:
    lines = folder.said("--version").splitlines()
    assert [line.split()[0] for line in lines][:1] == ["torchmesh-core"]
    assert f"torchmesh-jobs {mesh_jobs.__version__}" in lines


def test_the_help_groups_the_commands(folder: Folder) -> None:
    text = folder.said("--help")
    headings = [name for name in ("Hosts", "Programs", "Processes") if f" {name} " in text]
    assert headings == ["Hosts", "Programs", "Processes"]
    assert text.index("apply") < text.index(" Programs ") < text.index("spmd")
