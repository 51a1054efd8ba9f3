"""Files that a program gives to the hosts of its job with one line."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import mount_table

from mesh_core import Actor, endpoint
from mesh_fs import (
    CacheOptions,
    GatheredMount,
    MountError,
    MountOptions,
    RemoteMount,
    WorkspaceError,
    WorkspaceSync,
)

jobs = pytest.importorskip("mesh_jobs")

LIMIT_S = 60.0
MODULE = "package/module.py"


class Interpreter(Actor):
    """Returns the Python interpreter in which it runs."""

    @endpoint
    def prefix(self) -> str:
        return sys.prefix

    @endpoint
    def answer(self) -> int:
        import only_there

        answer: int = only_there.ANSWER
        return answer


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Any]:
    """The hosts of two meshes."""
    job = jobs.ProcessJob({"ones": 2, "twos": 1}, folder=tmp_path / "job", ttl_s=300)
    yield job
    job.kill()
    assert mount_table(tmp_path) == []


@pytest.mark.usefixtures("needs_mounts")
def test_a_mount_is_opened_by_job_state_and_closed_by_detach(
    job: Any, source: Path, tmp_path: Path, cache: CacheOptions
) -> None:
    files = RemoteMount(source, tmp_path / "mnt/$SUBDIR", meshes=["ones"], cache=cache)
    with pytest.raises(MountError, match="call job"):
        _ = files.handler
    job.add_extensions(files).state(timeout=LIMIT_S)
    modules = [tmp_path / f"mnt/hosts_{rank}" / MODULE for rank in range(2)]
    assert [module.read_text() for module in modules] == ["ANSWER = 42\n"] * 2
    (source / MODULE).write_text("ANSWER = 43\n")
    job.state(timeout=LIMIT_S)
    assert [module.read_text() for module in modules] == ["ANSWER = 43\n"] * 2
    (source / MODULE).write_text("ANSWER = 44\n")
    assert files.handler.refresh() is True
    assert modules[1].read_text() == "ANSWER = 44\n"
    job.detach()
    assert mount_table(tmp_path) == []
    with pytest.raises(MountError, match="call job"):
        _ = files.handler


def test_workspaces_are_synced_by_job_state(
    job: Any, source: Path, tmp_path: Path, cache: CacheOptions
) -> None:
    workspace = WorkspaceSync(source, tmp_path / "copies/$SUBDIR", meshes=["ones"], cache=cache)
    with pytest.raises(WorkspaceError, match="call job"):
        _ = workspace.workspaces
    job.add_extensions(workspace).state(timeout=LIMIT_S)
    copy = tmp_path / "copies/hosts_1" / MODULE
    assert copy.read_text() == "ANSWER = 42\n"
    (source / MODULE).write_text("ANSWER = 43\n")
    assert workspace.workspaces["ones"].sync().written == 2
    (source / MODULE).write_text("ANSWER = 44\n")
    job.state(timeout=LIMIT_S)
    assert copy.read_text() == "ANSWER = 44\n"
    job.detach()
    assert copy.read_text() == "ANSWER = 44\n"


@pytest.mark.usefixtures("needs_mounts")
@pytest.mark.skipif(find_spec("pyfuse3") is None, reason="torchmesh-fs[gather] is not installed")
def test_gathered_directories_have_a_folder_per_mesh(
    job: Any, source: Path, tmp_path: Path
) -> None:
    job.add_extensions(GatheredMount(str(source), tmp_path / "gathered")).state(timeout=LIMIT_S)
    found = sorted(one.name for one in (tmp_path / "gathered").iterdir())
    assert found == ["ones", "twos"]
    assert (tmp_path / "gathered/ones/hosts_1" / MODULE).read_text() == "ANSWER = 42\n"
    job.detach()
    assert mount_table(tmp_path) == []


@pytest.mark.usefixtures("needs_mounts")
def test_processes_run_from_an_environment_created_on_the_client(
    job: Any, tmp_path: Path, cache: CacheOptions
) -> None:
    project, there = tmp_path / "project", tmp_path / "mnt"
    venv.create(project / ".venv", symlinks=True, with_pip=False)
    python = project / ".venv/bin/python"
    words = [python, "-Ic", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())
    (site / "only_there.py").write_text("ANSWER = 42\n")
    # The packages of this Python represent the packages that would be installed there.
    ours = [sysconfig.get_path("purelib"), *filter(None, map(os.path.abspath, sys.path))]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in dict.fromkeys(ours)]
    (site / "ours.pth").write_text("".join(lines))
    files = RemoteMount(project, there, meshes=["twos"], python_exe=".venv/bin/python", cache=cache)
    state = job.add_extensions(files).state(timeout=LIMIT_S)
    twos = state.twos.spawn_procs({"gpus": 2}).spawn("twos", Interpreter)
    assert twos.prefix.call().get(LIMIT_S).values() == [str(there / ".venv")] * 2
    assert twos.answer.call().get(LIMIT_S).values() == [42, 42]
    ones = state.ones.spawn_procs().spawn("ones", Interpreter)
    assert set(ones.prefix.call().get(LIMIT_S).values()) == {sys.prefix}


def test_an_invalid_mount_is_refused_immediately(source: Path, tmp_path: Path) -> None:
    with pytest.raises(MountError, match="there is no Python"):
        RemoteMount(source, python_exe=".venv/bin/python")
    with pytest.raises(MountError, match="leave python_exe out"):
        RemoteMount(source, tmp_path / "$SUBDIR", python_exe="script.sh")
    files = RemoteMount(source, tmp_path / "mnt", meshes=["none"], mount=MountOptions("unpack"))
    with pytest.raises(MountError, match="has no mesh 'none'"):
        files.open({})
