"""Programs with special requirements: git, and Python with byte code and extensions."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from mesh_core import this_host
from mesh_fs import CacheOptions, MountOptions, remotemount

LIMIT_S = 60.0
#: An example that the session of the other examples cannot run, because it mounts a directory.
EXAMPLE = Path(__file__).parents[3] / "examples/monarch/remotemount.py"

pytestmark = pytest.mark.usefixtures("needs_mounts")


def run(*words: str | Path, **variables: str) -> str:
    """Run a program to completion, and return its output; standard error must be empty."""
    done = subprocess.run(
        words, env=os.environ | variables, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_example_prints_its_documented_output(tmp_path: Path) -> None:
    _, _, shown = EXAMPLE.read_text().partition("\n# prints:\n")
    expected = [line.removeprefix("#").strip() for line in shown.splitlines()]
    assert run(sys.executable, EXAMPLE, MESH_FS_CACHE=str(tmp_path)).splitlines() == expected


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A checkout with two hundred files."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    root = tmp_path / "repository"
    for number in range(200):
        path = root / f"package{number % 10}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"NUMBER = {number}\n" * (number + 1))
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("run.sh")
    who = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@a",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@a",
    }
    run("git", "-C", root, "init", "--quiet", **who)
    run("git", "-C", root, "add", ".", **who)
    run("git", "-C", root, "commit", "--quiet", "-m", "all", **who)
    return root


def git(place: Path, *words: str) -> str:
    """Run git without the settings of the machine."""
    # git would otherwise update its index if it is writable.
    variables = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_OPTIONAL_LOCKS": "0"}
    return run("git", "-C", place, *words, **variables)


@pytest.mark.parametrize("backend", ["fuse", "unpack"])
def test_git_reports_a_mounted_checkout_as_clean_and_intact(
    repository: Path, mountpoint: Path, cache: CacheOptions, backend: str
) -> None:
    options = MountOptions(backend=backend)
    with remotemount(this_host(), repository, mountpoint, cache=cache, mount=options) as handler:
        # git reads all files, because inode numbers on the mount differ from those in its index.
        assert git(mountpoint, "status", "--porcelain") == ""
        assert git(mountpoint, "fsck", "--strict", "--no-progress") == ""
        assert git(mountpoint, "log", "--format=%s") == "all\n"
        (repository / "package3/module3.py").write_text("changed")
        (repository / "new").write_text("")
        handler.refresh()
        assert git(mountpoint, "status", "--porcelain") == " M package3/module3.py\n?? new\n"


def test_git_status_with_minimal_stat_checks_does_not_read_files(
    repository: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    # The index must be newer than the files; otherwise git reads them to be sure.
    index = repository / ".git/index"
    os.utime(index, (index.stat().st_mtime + 10,) * 2)
    lazy = MountOptions(is_prefetched=False)
    with remotemount(this_host(), repository, mountpoint, cache=cache, mount=lazy) as handler:
        fetched = handler.status().item().fetched_bytes
        # Inode and device numbers are properties of the mount, not of the files.
        assert git(mountpoint, "-c", "core.checkStat=minimal", "status", "--porcelain") == ""
        files = sum(path.stat().st_size for path in repository.glob("package*/*"))
        assert handler.status().item().fetched_bytes - fetched < files / 2


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment with the installed numpy and a package of the test."""
    found = find_spec("numpy")
    if found is None or found.origin is None:
        pytest.skip("there is no numpy")
    root = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", "--copies", root)
    (packages,) = root.glob("lib/python*/site-packages")
    installed = Path(found.origin).parent
    for folder in (installed, installed.with_name("numpy.libs")):
        if folder.exists():
            shutil.copytree(folder, packages / folder.name, ignore=shutil.ignore_patterns("tests"))
    (packages / "own").mkdir()
    (packages / "own/__init__.py").write_text("")
    run(sys.executable, "-m", "compileall", "-q", packages / "own", packages / "numpy")
    return root


def test_python_uses_the_bytecode_of_a_mounted_virtual_environment(
    environment: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    before = {path: path.stat().st_mtime_ns for path in environment.rglob("*.pyc")}
    with remotemount(this_host(), environment, mountpoint, cache=cache):
        python = mountpoint / "bin/python"
        code = "import numpy; print(numpy.ones(3).sum(), numpy.__file__)"
        output = run(python, "-c", code, PYTHONPATH="").split()
        assert output[0] == "3.0"
        assert output[1].startswith(f"{mountpoint}/lib/")
        # Byte code is used if the time and size of the source match those recorded in it.
        words = [python, "-v", "-c", "import own"]
        loaded = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S).stderr
        (cached,) = (path for path in before if path.parent.parent.name == "own")
        assert f"code object from '{mountpoint / cached.relative_to(environment)}'" in loaded
        assert "wrote" not in loaded
        shown = {path: (mountpoint / path.relative_to(environment)).stat() for path in before}
        assert {path: status.st_mtime_ns for path, status in shown.items()} == before
    assert {path: path.stat().st_mtime_ns for path in environment.rglob("*.pyc")} == before


#: Has mapped the extensions of numpy, but not read all of their pages when it gets the signal to
#: continue.
_COMPUTES = """
import sys, numpy
print("imported", flush=True)
sys.stdin.readline()
import numpy.random
matrix = numpy.arange(16.0).reshape(4, 4) + 10 * numpy.eye(4)
print(round(float(numpy.linalg.det(matrix))), numpy.fft.fft(numpy.ones(4))[0].real)
"""


def test_python_keeps_running_and_restarts_while_its_environment_changes(
    environment: Path, mountpoint: Path, cache: CacheOptions
) -> None:
    (extension,) = environment.rglob("_umath_linalg*.so")
    (random,) = environment.rglob("numpy/random/__init__.py")
    compiled = extension.read_bytes()
    python, pipe = mountpoint / "bin/python", subprocess.PIPE
    words = [python, "-c", _COMPUTES]
    with (
        remotemount(this_host(), environment, mountpoint, cache=cache) as handler,
        subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as running,
    ):
        assert running.stdout is not None
        assert running.stdout.readline() == "imported\n"
        handler.wait(LIMIT_S)
        # Overwriting files in place is never safe while programs run from them.
        extension.write_bytes(bytes(len(compiled)))
        random.write_text("NEW = True\n")
        assert handler.refresh() is True
        assert running.communicate("go on\n", timeout=LIMIT_S) == ("32000 4.0\n", None)
        code = "import numpy.linalg"
        broken = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        assert "ImportError" in broken.stderr
        extension.unlink()
        extension.write_bytes(compiled)
        assert handler.refresh() is True
        assert run(python, "-c", "import numpy.random; print(numpy.random.NEW)") == "True\n"
