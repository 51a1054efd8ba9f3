"""The virtual machine runs a command as if locally, or reports why it cannot."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rdma.vm import __main__ as vm
from tests.rdma.vm import archive, job, kernel, machine
from tests.rdma.vm.impossible import Impossible

#: Prints a variable, its arguments, its folder and its devices; writes a file that must not be
#: visible outside.
ASK = """
import os, sys
print(os.environ["ODD"], sys.argv[1:], os.getcwd(), sorted(os.listdir("/sys/class/infiniband")))
open("left-behind", "w").close()
sys.exit(7)
"""


# All runs of the verbs tests rely on this.
@pytest.mark.slow
def test_a_command_has_the_local_files_and_variables_and_returns_its_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ODD", 'it\'s $HOME;\n"`x`"')
    assert vm.main(["--", sys.executable, "-S", "-c", ASK, "a b", "$c"]) == 7
    expected = f"it's $HOME;\n\"`x`\" ['a b', '$c'] {tmp_path} ['rxe0', 'rxe1']\n"
    assert capfdbinary.readouterr().out.decode() == expected
    assert not (tmp_path / "left-behind").exists()


def test_command_that_takes_too_long_is_stopped(capfd: pytest.CaptureFixture[str]) -> None:
    assert vm.main(["--limit", "0.2", "--", "true"]) == machine.TOOK_TOO_LONG
    assert "stopped after" in capfd.readouterr().err


def test_a_machine_that_does_not_boot_shows_its_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "command", lambda _kernel, _files, console: _say(console))
    (tmp_path / "modules").mkdir()
    with pytest.raises(machine.NotEnded, match="failed: the devices cannot be made"):
        machine.run(kernel.Kernel(tmp_path), job.here(["true"]), 60)


def _say(console: Path) -> list[str]:
    return ["sh", "-c", f"echo 'machine: failed: the devices cannot be made (3 s)' > {console}"]


def test_a_missing_qemu_is_reported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, **more: None if "qemu" in name else which(name, **more)
    )
    assert vm.main(["--", "true"]) == vm.NO_MACHINE
    assert "no machine: qemu-system-x86_64 is missing: apt-get" in capfd.readouterr().err


def test_a_missing_apt_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Impossible, match="a package of Debian: there is no apt-get"):
        kernel.ensure(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_archives_contain_the_packed_files(tmp_path: Path) -> None:
    first = archive.pack([archive.folder("a"), archive.program("a/b", b"12345")])
    second = archive.pack([archive.program("c", b"")])
    subprocess.run(["busybox", "cpio", "-id"], cwd=tmp_path, input=first, check=True)
    subprocess.run(["busybox", "cpio", "-id"], cwd=tmp_path, input=second, check=True)
    assert (tmp_path / "a/b").read_bytes() == b"12345"
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o755
