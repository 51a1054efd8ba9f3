"""Recorded actors that run together in other orders."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mesh_core import DeadlockError
from mesh_core._schedules.command import main
from mesh_core._schedules.diagram import sequence_diagram
from mesh_core.replay import ReplayError
from mesh_core.schedules import FailingSchedule, ScheduleSearch

PROGRAM = Path(__file__).with_name("raced_actors.py")
LIMIT_S = 100.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases of a program whose actors race, in a run in which they did not fail."""
    folder = tmp_path_factory.mktemp("raced")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "cases"


def case_of(folder: Path, words: str) -> Path:
    (found,) = (one for one in folder.iterdir() if words in one.name)
    return found


def search_of(folder: Path, words: str, *, may_reorder: bool = False) -> ScheduleSearch:
    return ScheduleSearch(case_of(folder, words), trust=True, may_reorder=may_reorder)


def found_in(search: ScheduleSearch, count: int = 200) -> FailingSchedule:
    assert search.run_recorded() is None
    found = search.find(count)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("words", "error", "text"),
    [
        ("bank-auditor", ValueError, "instead of 3"),
        ("loop-auditor", ValueError, "instead of 3"),
        ("reducer", LookupError, "2 came before 1"),
    ],
)
def test_a_race_is_found_in_a_run_without_a_failure(
    folder: Path, words: str, error: type[Exception], text: str
) -> None:
    found = found_in(search_of(folder, words))
    assert isinstance(found.error, error)
    assert text in str(found.error)
    assert found.is_race
    assert len(found.steps) <= found.found_length


def test_equal_seeds_give_equal_schedules(folder: Path) -> None:
    search = search_of(folder, "bank-auditor")
    first = found_in(search)
    assert first.seed is not None
    again = search_of(folder, "bank-auditor").find(1, first.seed)
    assert again is not None
    assert again.diagram() == first.diagram()


def test_actors_without_a_race_do_not_fail(folder: Path) -> None:
    search = search_of(folder, "safe-auditor")
    assert search.run_recorded() is None
    assert search.find(100) is None


def test_messages_that_the_race_does_not_need_are_left_out(folder: Path) -> None:
    found = found_in(search_of(folder, "reducer"))
    # The sender of rank 0 is not needed, and neither are the second parts of the others.
    assert sorted(found.steps) == sorted(
        step for step in found.steps if "senders[0]" not in step and ", 1)" not in step
    )
    assert [step for step in found.steps if "add(" in step] == [
        "senders[2] to reducer[0]: add(2, 0)",
        "senders[1] to reducer[0]: add(1, 0)",
    ]


def test_the_error_of_a_deadlock_names_each_waiting_actor(folder: Path) -> None:
    # The program waited for the first actor before it called the second one.
    assert search_of(folder, "peers").find(100) is None
    found = found_in(search_of(folder, "peers", may_reorder=True))
    assert isinstance(found.error, DeadlockError)
    assert "peers[0] waits for get of peers[1]" in str(found.error)
    assert "peers[1] waits for get of peers[0]" in str(found.error)


def test_unrecorded_actors_reply_as_in_the_recorded_run(folder: Path) -> None:
    search = search_of(folder, "listener", may_reorder=True)
    assert search.actors == ["listener[0]"]
    assert search.run_recorded() is None
    assert search.find(20) is None


def test_actors_of_meshes_with_equal_names_are_distinguished(folder: Path) -> None:
    search = search_of(folder, "twins-auditor")
    assert len(set(search.actors)) == 3
    assert sum(name.startswith("twin[0] at ") for name in search.actors) == 2
    assert search.run_recorded() is None
    assert search.find(5) is None


def test_the_diagram_shows_each_message_and_the_failure(folder: Path) -> None:
    found = found_in(search_of(folder, "reducer"))
    lines = found.diagram().splitlines()
    assert lines[0].split() == ["program", "senders[2]", "reducer[0]", "senders[1]"]
    assert len(lines) == len(found.steps) + 2
    assert re.search(r"add\(2, 0\) -+>", found.diagram())
    assert lines[-1].endswith("LookupError: 2 came before 1 and both before 0")
    drawn = found.mermaid().splitlines()
    assert drawn[0] == "sequenceDiagram"
    assert sum("->>" in line for line in drawn) == len(found.steps)


@pytest.mark.parametrize("length", range(1, 30))
def test_every_arrow_of_a_diagram_has_a_head(length: int) -> None:
    actor = SimpleNamespace(name="actor[0]")
    event: Any = SimpleNamespace(sender="program", actor=actor, text="x" * length, is_reply=False)
    failure: Any = SimpleNamespace(actor="actor[0]", text="failed")
    assert re.search(r"x -+>", sequence_diagram([event], failure))


def test_the_command_prints_the_shortest_order(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = tmp_path / "race.mmd"
    case = str(case_of(folder, "bank-auditor"))
    assert main([case, "--trust", "--count", "100", "--mermaid", str(drawn)]) == 1
    printed = capsys.readouterr()
    assert "the recorded order does not fail" in printed.err
    assert "the order is the cause" in printed.err
    assert "check of bank_auditor[0] raises ValueError" in printed.out
    assert drawn.read_text().startswith("sequenceDiagram")
    assert main([str(case_of(folder, "safe-auditor")), "--trust", "--count", "5"]) == 0
    assert "5 other orders do not fail either" in capsys.readouterr().err


@pytest.mark.slow
def test_the_generated_test_fails_until_the_race_is_fixed(folder: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.read_text())
    done = subprocess.run([sys.executable, str(program), str(tmp_path / "raced")], check=False)
    assert done.returncode == 0
    case = case_of(tmp_path / "raced" / "cases", "bank-auditor")
    assert main([str(case), "--trust", "--count", "20", "--as-test", str(tmp_path)]) == 1
    (path,) = tmp_path.glob("test_*.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1, failed.stdout
    assert "ValueError: the balance is" in failed.stdout
    assert re.search(r"write\(1\) -+>|< write\(1\) -+", failed.stdout)
    teller = """        balance = self.account.read.call_one().get(timeout=100)
        self.account.write.call_one(balance + amount).get()
"""
    source = program.read_text()
    assert teller in source
    program.write_text(source.replace(teller, "        self.account.add.call_one(amount).get()\n"))
    passed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert passed.returncode == 0, passed.stdout


def test_an_untrusted_case_is_not_executed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ReplayError, match="trust=True"):
        ScheduleSearch(case_of(folder, "bank-auditor"))
    assert main([str(case_of(folder, "bank-auditor"))]) == 2
    assert "--trust" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["x.case", "--trust", "--count", "-1"])
