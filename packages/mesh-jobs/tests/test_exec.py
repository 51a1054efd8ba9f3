"""Commands on the ranks of a mesh."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from workers import is_alive, loopback_hosts

from mesh_core import CallCancelled, MeshError
from mesh_core.testing import wait_until
from mesh_jobs import exec_command

if TYPE_CHECKING:
    from mesh_core import HostMesh


def test_every_rank_runs_the_command_and_its_lines_have_its_name_as_prefix(
    hosts: HostMesh, capfd: pytest.CaptureFixture[str]
) -> None:
    status = exec_command(hosts, "echo one; echo two; echo bad >&2", per_host={"gpus": 2}).get()
    assert status == 0
    out, err = capfd.readouterr()
    names = [f"[mesh hosts={host} gpus={gpu}]" for host in (0, 1) for gpu in (0, 1)]
    for name in names:
        assert [line for line in out.splitlines() if line.startswith(name)] == [
            f"{name} one",
            f"{name} two",
        ]
    assert sorted(err.splitlines()) == sorted(f"{name} bad" for name in names)


def test_each_rank_has_its_position_in_the_environment(hosts: HostMesh, tmp_path: Path) -> None:
    line = "echo $MESH_RANK_HOSTS/$MESH_SIZE_HOSTS $MESH_RANK_GPUS/$MESH_SIZE_GPUS $MORE"
    exec_command(
        hosts, line, {"MORE": "more"}, output_dir=tmp_path, per_host={"gpus": 2}, name="trainers"
    ).get()
    said = {
        (host, gpu): (tmp_path / f"trainers/hosts-{host}/gpus-{gpu}/stdout.txt").read_text()
        for host in (0, 1)
        for gpu in (0, 1)
    }
    assert said == {(h, g): f"{h}/2 {g}/2 more\n" for h in (0, 1) for g in (0, 1)}


def test_output_is_stored_byte_for_byte(hosts: HostMesh, tmp_path: Path) -> None:
    program = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 9999); sys.stderr.write('_')"
    assert exec_command(hosts, ["python", "-c", program], output_dir=tmp_path).get() == 0
    for host in (0, 1):
        folder = tmp_path / f"mesh/hosts-{host}"
        assert (folder / "stdout.txt").read_bytes() == bytes(range(256)) * 9999
        assert (folder / "stderr.txt").read_text() == "_"
        assert (folder / "exit_code.txt").read_text() == "0\n"


def test_the_first_nonzero_exit_status_is_returned(hosts: HostMesh, tmp_path: Path) -> None:
    line = "exit $((MESH_RANK_HOSTS * 40))"
    assert exec_command(hosts, line, output_dir=tmp_path).get() == 40
    assert (tmp_path / "mesh/hosts-1/exit_code.txt").read_text() == "40\n"
    assert exec_command(hosts, "kill -9 $$").get() == 128 + signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "workdir", "status", "told"),
    [
        (["no-such-program"], None, 127, "command 'no-such-program' cannot be used: No such file"),
        (["/etc/passwd"], None, 126, "command '/etc/passwd' cannot be used: Permission denied"),
        (["true"], "/no/such/folder", 127, "folder '/no/such/folder' cannot be used: No such file"),
    ],
)
def test_a_command_that_cannot_run_has_the_exit_status_of_a_shell(
    host: HostMesh,
    capfd: pytest.CaptureFixture[str],
    command: list[str],
    workdir: str | None,
    status: int,
    told: str,
) -> None:
    assert exec_command(host, command, workdir=workdir).get() == status
    assert told in capfd.readouterr().err


def test_a_command_runs_in_its_folder_with_the_python_of_the_worker(
    host: HostMesh, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = "import os, sys; print(os.getcwd(), sys.prefix)"
    assert exec_command(host, ["python", "-c", program], workdir=tmp_path).get() == 0
    assert f"{tmp_path} {sys.prefix}" in capfd.readouterr().out


def test_background_processes_are_killed_when_their_command_exits(
    host: HostMesh, tmp_path: Path
) -> None:
    left = tmp_path / "pid"
    stubborn = f"(trap '' TERM; setsid sleep 600 & echo $! > {left}; wait) &"
    line = f"{stubborn} while ! test -s {left}; do :; done"
    assert exec_command(host, line).get() == 0
    assert not is_alive(int(left.read_text()))


def test_cancelling_terminates_the_command_on_all_ranks(hosts: HostMesh, tmp_path: Path) -> None:
    running = exec_command(hosts, f"echo $PPID > {tmp_path}/$MESH_RANK_HOSTS; sleep 600")
    files = [tmp_path / "0", tmp_path / "1"]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    assert running.cancel()
    with pytest.raises(CallCancelled):
        running.get()
    wait_until(lambda: not any(is_alive(int(file.read_text())) for file in files))


def test_a_command_is_killed_when_the_process_that_runs_it_dies(
    host: HostMesh, tmp_path: Path
) -> None:
    noted = tmp_path / "pids"
    # The supervisor is the parent of the shell, and the actor's process is the parent of the
    # supervisor.
    line = f"sleep 600 & echo $! $PPID $$ > {noted}.tmp; mv {noted}.tmp {noted}; wait"
    running = exec_command(host, line)
    wait_until(noted.exists)
    sleeper, supervisor, shell = map(int, noted.read_text().split())
    runner = int(Path(f"/proc/{supervisor}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(runner, signal.SIGKILL)
    with pytest.raises(MeshError, match=r"died|killed|SIGKILL"):
        running.get()
    wait_until(lambda: not any(map(is_alive, (sleeper, supervisor, shell))))


def test_a_lost_host_raises_an_error_and_terminates_the_other_ranks(tmp_path: Path) -> None:
    with loopback_hosts(2) as hosts:
        running = exec_command(hosts, f"echo $PPID > {tmp_path}/$MESH_RANK_HOSTS; sleep 600")
        files = [tmp_path / "0", tmp_path / "1"]
        wait_until(lambda: all(file.exists() and file.read_text() for file in files))
        hosts.slice(hosts=1).shutdown().get()
        with pytest.raises(MeshError):
            running.get()
        wait_until(lambda: not any(is_alive(int(file.read_text())) for file in files))


def test_an_empty_command_is_refused(host: HostMesh) -> None:
    with pytest.raises(ValueError, match="the command is empty: give a command to run"):
        exec_command(host, " ")
