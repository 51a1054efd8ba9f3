"""Scripts that are written for torchrun."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from workers import is_alive

from mesh_core.testing import wait_until
from mesh_jobs import run_spmd

if TYPE_CHECKING:
    from mesh_core import HostMesh

# All ranks connect to the rendezvous address. Rank 0 listens there, and prints what it received.
MEET = """
import json, os, socket, sys
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if rank == 0:
    with socket.create_server(("", where[1])) as listener:
        heard = []
        for _ in range(size - 1):
            connection, _ = listener.accept()
            with connection:
                heard.append(int(connection.makefile().readline()))
    print("heard", sorted(heard), sys.argv[1:])
else:
    while True:
        try:
            connection = socket.create_connection(where)
            break
        except ConnectionRefusedError:
            continue
    with connection:
        connection.sendall(b"%d\\n" % rank)
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def test_ranks_rendezvous_at_the_master_in_repeated_runs(
    hosts: HostMesh, script: Path, tmp_path: Path
) -> None:
    script.write_text(MEET)
    for attempt in range(3):
        kept = tmp_path / str(attempt)
        assert run_spmd(hosts, script, ["--lr", "0.1"], per_host=2, output_dir=kept).get() == 0
        said = (kept / "mesh/hosts-0/procs-0/stdout.txt").read_text()
        assert said == "heard [1, 2, 3] ['--lr', '0.1']\n"


def test_the_environment_matches_torchrun(hosts: HostMesh, script: Path, tmp_path: Path) -> None:
    script.write_text("import json, os; print(json.dumps(dict(os.environ)))")
    assert run_spmd(hosts, script, per_host={"gpus": 2}, output_dir=tmp_path).get() == 0
    told = [
        json.loads((tmp_path / f"mesh/hosts-{host}/gpus-{gpu}/stdout.txt").read_text())
        for host in (0, 1)
        for gpu in (0, 1)
    ]
    for rank, env in enumerate(told):
        host, gpu = divmod(rank, 2)
        expected = {
            "RANK": rank,
            "LOCAL_RANK": gpu,
            "GROUP_RANK": host,
            "ROLE_RANK": rank,
            "ROLE_NAME": "default",
            "WORLD_SIZE": 4,
            "LOCAL_WORLD_SIZE": 2,
            "GROUP_WORLD_SIZE": 2,
            "ROLE_WORLD_SIZE": 4,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", 1),
            "MESH_RANK_HOSTS": host,
            "MESH_SIZE_GPUS": 2,
        }
        assert {name: env[name] for name in expected} == {k: str(v) for k, v in expected.items()}
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"):
        assert len({env[name] for env in told}) == 1


def test_a_module_runs_as_with_python_m(hosts: HostMesh, tmp_path: Path) -> None:
    (tmp_path / "a_module.py").write_text("import sys; print(__name__, sys.argv[1:])")
    kept = tmp_path / "kept"
    run = run_spmd(hosts, module="a_module", args=["x"], workdir=tmp_path, output_dir=kept)
    assert run.get() == 0
    assert (kept / "mesh/hosts-1/procs-0/stdout.txt").read_text() == "__main__ ['x']\n"


def test_the_first_failure_is_reported_and_terminates_the_other_ranks(
    hosts: HostMesh, script: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text(
        textwrap.dedent(f"""
        import os, pathlib, signal, time
        rank = int(os.environ["RANK"])
        here = pathlib.Path({str(tmp_path)!r})
        (here / f"{{rank}}.tmp").write_text(str(os.getpid()))
        (here / f"{{rank}}.tmp").rename(here / f"{{rank}}.pid")
        if rank != 2:
            signal.pause()
        while len(list(here.glob("*.pid"))) < 4:
            pass
        def fail():
            raise LookupError("no such batch")
        fail()
        """)
    )
    assert run_spmd(hosts, script, per_host=2).get() == 1
    said = capfd.readouterr().err
    last = said[said.index("mesh: rank 2 (mesh hosts=1 procs=0) failed first") :].splitlines()
    assert last[0].endswith(f"with exit status 1 on {socket.gethostname()}:")
    assert last[1] == "Traceback (most recent call last):"
    assert last[-1] == "LookupError: no such batch"
    assert not any(is_alive(int((tmp_path / f"{rank}.pid").read_text())) for rank in range(4))


def test_a_killed_rank_is_reported_with_its_signal(
    hosts: HostMesh, script: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text(
        "import os, signal\n"
        "os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '1' else signal.pause()\n"
    )
    assert run_spmd(hosts, script).get() == 137
    expected = f"failed first, ended by SIGKILL on {socket.gethostname()}\n"
    assert f"rank 1 (mesh hosts=1 procs=0) {expected}" in capfd.readouterr().err


def test_other_programs_cannot_bind_the_master_port(
    hosts: HostMesh, script: Path, tmp_path: Path
) -> None:
    script.write_text(
        f"import os, pathlib, signal\n"
        f"file = pathlib.Path({str(tmp_path)!r}) / os.environ['RANK']\n"
        f"file.with_suffix('.tmp').write_text(os.environ['MASTER_PORT'])\n"
        f"file.with_suffix('.tmp').rename(file)\n"
        f"signal.pause()\n"
    )
    running = run_spmd(hosts, script)
    wait_until((tmp_path / "0").exists, 30)
    port = int((tmp_path / "0").read_text())
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(("", port))
    # The script sets SO_REUSEADDR, so it can listen on the reserved port.
    with socket.create_server(("", port)):
        pass
    assert running.cancel()


def test_the_traceback_written_by_torch_is_reported(
    hosts: HostMesh, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(
        "import json, os, sys\n"
        "told = {'message': 'it broke', 'extraInfo': {'py_callstack': 'Traceback: of rank 0'}}\n"
        "if os.environ['RANK'] == '0':\n"
        "    with open(os.environ['TORCHELASTIC_ERROR_FILE'], 'w') as file:\n"
        "        json.dump({'message': told}, file)\n"
        "    print('something else', file=sys.stderr)\n"
        "    sys.exit(5)\n"
        "sys.stdin.read() or __import__('signal').pause()\n"
    )
    assert run_spmd(hosts, script).get() == 5
    report = capsys.readouterr().err.partition("failed first")[2]
    head = f", with exit status 5 on {socket.gethostname()}: it broke\n"
    assert report == f"{head}Traceback: of rank 0\n"


def test_a_run_that_is_cancelled_reports_no_failure(
    hosts: HostMesh, script: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text(
        "import os, pathlib, signal\n"
        f"(pathlib.Path({str(tmp_path)!r}) / os.environ['RANK']).touch()\n"
        "signal.pause()\n"
    )
    running = run_spmd(hosts, script)
    wait_until(lambda: all((tmp_path / rank).exists() for rank in "01"), 30)
    assert running.cancel()
    for thread in threading.enumerate():
        if thread.name == "mesh-exec":
            thread.join()
    assert "failed first" not in capfd.readouterr().err


INTERRUPTED = """
import sys
from mesh_jobs import ProcessJob, run_spmd
job = ProcessJob({"hosts": 2}, folder=sys.argv[1])
run = run_spmd(job.state(timeout=60).hosts, sys.argv[2])
try:
    run.get()
except KeyboardInterrupt:
    print("interrupted here, there", run.get(), flush=True)
finally:
    job.kill()
"""


def test_ctrl_c_reaches_the_ranks_of_a_program(script: Path, tmp_path: Path) -> None:
    script.write_text(
        "import os, pathlib, signal, sys\n"
        "def told(*_):\n"
        "    pathlib.Path(sys.argv[0] + os.environ['RANK']).touch()\n"
        "    sys.exit(4)\n"
        "signal.signal(signal.SIGINT, told)\n"
        "print('begun', flush=True)\n"
        "signal.pause()\n"
    )
    words = [sys.executable, "-c", INTERRUPTED, str(tmp_path), str(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert [program.stdout.readline()[-6:] for _ in range(2)] == ["begun\n"] * 2
        program.send_signal(signal.SIGINT)
        assert "interrupted here, there 4" in program.communicate(timeout=60)[0]
    assert sorted(path.name for path in tmp_path.glob("script.py?")) == ["script.py0", "script.py1"]


def test_a_run_needs_a_script_or_a_module(hosts: HostMesh) -> None:
    with pytest.raises(ValueError, match="either a script or a module"):
        run_spmd(hosts)
    with pytest.raises(ValueError, match="either a script or a module"):
        run_spmd(hosts, "a.py", module="a")


@pytest.mark.slow
def test_a_torch_script_runs_with_gloo(hosts: HostMesh, script: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "total = torch.tensor([float(dist.get_rank())])\n"
        "dist.all_reduce(total)\n"
        "print(int(total))\n"
        "dist.destroy_process_group()\n"
    )
    assert run_spmd(hosts, script, per_host=2, output_dir=tmp_path).get() == 0
    said = [file.read_text() for file in sorted(tmp_path.glob("mesh/**/stdout.txt"))]
    assert said == ["6\n"] * 4
