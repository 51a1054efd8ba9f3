"""Folder names for events that another user has taken are not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mesh_telemetry import StorageError
from mesh_telemetry._events.folders import open_host_folder, sweep
from mesh_telemetry._serve.program_files import ServedProgramFile, served_program, served_programs
from mesh_telemetry._serve.scopes import Tokens

RUN = "4711-" + "ab" * 8 + "cd" * 8
PREFIX = f"mesh-telemetry-{os.geteuid()}-"
TAKEN = ["a link", "a file", "a folder that others can enter"]


def take(path: Path, how: str, elsewhere: Path) -> None:
    """Occupy a path with a link, a file, or a folder that is not private."""
    if how == "a link":
        elsewhere.mkdir(exist_ok=True)
        path.symlink_to(elsewhere)
    elif how == "a file":
        path.touch()
    else:
        path.mkdir(mode=0o755)
        path.chmod(0o755)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_name_of_a_folder_reveals_only_half_of_the_run_id(tmp_path: Path) -> None:
    folder, lock = open_host_folder(str(tmp_path), RUN, 0)
    assert folder.parent.name == PREFIX + RUN[: len(RUN) // 2]
    assert [mode(folder), mode(folder.parent)] == [0o700, 0o700]
    lock.close()


@pytest.mark.parametrize("how", TAKEN)
def test_all_processes_of_a_run_use_the_second_name_if_the_first_is_in_use(
    tmp_path: Path, how: str
) -> None:
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    place.mkdir()
    taken = place / (PREFIX + RUN[: len(RUN) // 2])
    take(taken, how, elsewhere)
    folder, first = open_host_folder(str(place), RUN, 0)
    assert folder == place / (PREFIX + RUN) / "0"
    # The second name stays in use even if the first is free again.
    taken.rmdir() if taken.is_dir() and not taken.is_symlink() else taken.unlink()
    same, second = open_host_folder(str(place), RUN, 0)
    assert same == folder
    first.close()
    second.close()
    sweep(str(place))
    assert list(place.iterdir()) == []
    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("how", TAKEN)
def test_a_sweep_keeps_files_of_other_users(tmp_path: Path, how: str) -> None:
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    place.mkdir()
    theirs = place / f"{PREFIX}1-ff"
    take(theirs, how, elsewhere)
    inside = (theirs if how != "a file" else elsewhere) / "0"
    inside.mkdir(parents=True)
    (inside / "lock").touch()
    sweep(str(place))
    assert inside.exists()


def test_the_error_says_what_to_do_if_both_names_are_in_use(tmp_path: Path) -> None:
    for name in (RUN, RUN[: len(RUN) // 2]):
        (tmp_path / f"{PREFIX}{name}").touch()
    with pytest.raises(StorageError, match="set another directory"):
        open_host_folder(str(tmp_path), RUN, 0)


@pytest.mark.parametrize("how", TAKEN)
def test_served_programs_are_found_if_another_user_owns_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    runtime, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    taken = runtime / f"mesh-served-{os.geteuid()}"
    take(taken, how, elsewhere)
    tokens = Tokens.random()
    notes = [
        ServedProgramFile(os.getpid(), f"http://127.0.0.1:{port}", "", tokens) for port in (1, 2)
    ]
    assert {served.url[-1] for served in served_programs()} == {"1", "2"}
    notes.pop().remove()
    found = served_program()
    assert found.token == tokens.read
    assert found.act_token() == tokens.act
    assert mode(Path(found.act_token_file).parent) == 0o700
    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []
    notes.pop().remove()
    assert served_programs() == []


def test_program_files_in_a_folder_writable_by_others_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    note = ServedProgramFile(os.getpid(), "http://127.0.0.1:1", "", Tokens.random())
    assert len(served_programs()) == 1
    (tmp_path / f"mesh-served-{os.geteuid()}").chmod(0o777)
    assert served_programs() == []
    note.remove()
