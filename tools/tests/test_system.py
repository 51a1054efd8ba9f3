"""Required system programs are found where they are, and installed if permitted."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools import system


def program(folder: Path, name: str, script: str = "exit 0") -> None:
    """Create a program in a folder."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH."""
    monkeypatch.setattr(system, "ADMIN_FOLDERS", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MESH_CACHE", str(tmp_path / "cache"))
    for name in ("env", "true"):
        program(tmp_path, name)
    return tmp_path


def test_packages_of_missing_programs_are_listed(only: Path) -> None:
    program(only, "here")
    wanted = {"here": "package-a", "gone": "package-b", "gone-too": "package-b"}
    assert system.missing(wanted) == ["package-b"]


def test_programs_in_admin_folders_are_found(
    only: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = tmp_path_factory.mktemp("sbin")
    program(admin, "nft")
    monkeypatch.setattr(system, "ADMIN_FOLDERS", (str(admin),))
    assert system.missing({"nft": "nftables"}) == []


def test_ensure_installs_missing_packages_as_root(
    only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    program(only, "apt-get")
    # Replaces the program that would run apt-get.
    script = f"""
        [ "$3" = install ] || exit 0
        echo "$@" > {only}/asked
        echo > {only}/nft
        /bin/chmod 755 {only}/nft
    """
    program(only, "env", script)
    assert system.ensure({"nft": "nftables"}) == []
    assert (only / "asked").read_text().split()[-1] == "nftables"


def test_ensure_returns_packages_that_it_may_not_install(
    only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    program(only, "apt-get")
    assert system.ensure({"nft": "nftables"}) == ["nftables"]


def test_packages_of_missing_files_are_listed(only: Path) -> None:
    present = only / "rxe.driver"
    present.touch()
    wanted = {str(present): "package-a", str(only / "gone"): "package-b"}
    assert system.missing(wanted) == ["package-b"]


def test_two_sessions_that_need_the_same_package_install_it_once(
    only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    program(only, "apt-get")
    script = f"""
        [ "$3" = install ] || exit 0
        [ -e {only}/running ] && echo > {only}/collided
        echo > {only}/running
        echo "$@" >> {only}/asked
        /bin/sleep 0.1
        echo > {only}/nft
        /bin/chmod 755 {only}/nft
        /bin/rm {only}/running
    """
    program(only, "env", script)
    with ThreadPoolExecutor(2) as threads:
        left = list(threads.map(system.ensure, [{"nft": "nftables"}] * 2))
    assert left == [[], []]
    assert len((only / "asked").read_text().splitlines()) == 1
    assert not (only / "collided").exists()
