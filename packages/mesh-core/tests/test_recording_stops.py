"""A recording on a full disk: the actors continue, and the case names its end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mesh_core import case

LIMIT_S = 100.0
# Mounts a small file system for temporary files that only this command sees.
MOUNT = 'mount -t tmpfs -o size=700k tmpfs "$0" && TMPDIR="$0" exec "$@"'
PROGRAM = """
import resource
import sys
from mesh_core import Actor, endpoint, this_host
from mesh_core.recording import NotRecorded, record, save_case

class Eater(Actor):
    @endpoint
    def limit(self, length: int) -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))

    @endpoint
    def eat(self, data: bytes) -> int:
        if not data:
            raise ValueError("nothing")
        return len(data)

    @endpoint
    def fail(self) -> None:
        raise KeyError("late")

if __name__ == "__main__":
    record(budget_bytes="1 MiB", folder=sys.argv[1])
    procs = this_host().spawn_procs()
    eater = procs.spawn("eater", Eater)
    if sys.argv[2:]:
        eater.limit.call_one(int(sys.argv[2])).get()
    print(sum(eater.eat.call_one(bytes(30_000)).get() for _ in range(100)))
    try:
        eater.eat.call_one(b"").get()
    except ValueError:
        print("failed")
    late = procs.spawn("late", Eater)
    print(late.eat.call_one(b"x").get())
    try:
        late.fail.call_one().get()
    except KeyError:
        pass
    try:
        save_case(late)
    except NotRecorded as error:
        print(error)
"""


def run(folder: Path, *before: str, limit: str = "") -> subprocess.CompletedProcess[str]:
    """Run the program in a directory, which contains its case afterwards."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    words = [*before, sys.executable, str(script), str(folder / "cases"), *limit.split()]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=folder
    )


def check(
    done: subprocess.CompletedProcess[str],
    folder: Path,
    cause: str,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Check that the program was not disturbed; return its warning."""
    assert done.returncode == 0, done.stderr
    first, second, third, fourth = done.stdout.splitlines()
    assert (first, second, third) == ("3000000", "failed", "1")
    assert fourth.startswith("the recording ended before the actor was created, because")
    warnings = [line for line in done.stderr.splitlines() if "no longer recorded" in line]
    assert len(warnings) == 1, done.stderr
    assert "free space there" in warnings[0]
    # The failure of an actor without a recording is not attributed to another one.
    assert "mesh could not save a case: the recording ended before the actor" in done.stderr
    (found,) = (folder / "cases").iterdir()
    assert case.main(["show", str(found)]) == 0
    shown = capsys.readouterr().out
    ends = re.findall(r"the recording ended at message (\d+), because (.*?)\)?$", shown, re.M)
    # In the reason, below the actor and at the end of its entries.
    assert len(ends) == 3, shown
    number, text = ends[0]
    assert cause in text
    last = re.findall(r"^  #(\d+) eat\(", shown, re.M)[-1]
    assert number == last
    assert int(number) < 100
    return warnings[0]


def test_the_actor_continues_when_the_disk_is_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The path of a socket in it must not be too long.
    place = tempfile.mkdtemp(dir="/tmp", prefix="mesh-full-")
    try:
        mounting = ("unshare", "-rm", "sh", "-c", MOUNT, place)
        if shutil.which("unshare") is None or subprocess.call([*mounting, "true"]):
            pytest.skip("file systems cannot be mounted here")
        done = run(tmp_path, *mounting)
        warning = check(done, tmp_path, "the disk was full", capsys)
        assert f"{place}/mesh-" in warning
        assert "No space left on device" in warning
    finally:
        shutil.rmtree(place)


def test_the_actor_continues_when_the_log_reaches_a_file_size_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(tmp_path, limit="65536")
    check(done, tmp_path, "its log could not be continued: File too large", capsys)


def test_an_exception_without_printable_text_is_recorded(tmp_path: Path) -> None:
    script = tmp_path / "strange.py"
    script.write_text(
        "from mesh_core import Actor, endpoint, this_host\n"
        "class Strange(Exception):\n"
        "    def __str__(self) -> str: raise LookupError('no text')\n"
        "class Thrower(Actor):\n"
        "    @endpoint\n"
        "    def throw(self, what: str) -> None:\n"
        "        raise Strange if what == 'strange' else OSError(what)\n"
        "if __name__ == '__main__':\n"
        "    thrower = this_host().spawn_procs().spawn('thrower', Thrower)\n"
        "    for what in ('strange', 'file \\udc80'):\n"
        "        try: thrower.throw.call_one(what).get()\n"
        "        except Exception: pass\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "MESH_RECORD": "*"},
    )
    assert done.returncode == 0, done.stderr
    names = " ".join(path.name for path in (tmp_path / "mesh-cases").iterdir())
    assert "raised-Strange" in names
    assert "raised-OSError-file" in names
