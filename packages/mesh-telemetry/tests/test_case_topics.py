"""The topics of saved cases, requested from a program whose recorded actor fails."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
from case_program import CaseProgram, case_program

from mesh_core.testing import wait_until

LIMIT_S = 60.0


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    """The folder in which the program saves its cases."""
    return tmp_path / "saved cases"


@pytest.fixture
def program(
    place: Path, cases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CaseProgram]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with case_program(place, cases) as running:
        yield running


def topic(program: CaseProgram, name: str, **arguments: str) -> Any:
    url = f"{program.served.url}/topics/{name}?{urlencode(arguments)}"
    request = Request(url, headers={"Authorization": f"Bearer {program.served.token}"})
    with urlopen(request, timeout=LIMIT_S) as reply:
        return json.load(reply)["value"]


def wait_for_cases(program: CaseProgram, count: int) -> list[dict[str, Any]]:
    wait_until(lambda: len(topic(program, "cases")["rows"]) == count, LIMIT_S)
    found: list[dict[str, Any]] = topic(program, "cases")["rows"]
    return found


def test_a_case_is_listed_when_an_actor_fails(
    program: CaseProgram, cases: Path, tmp_path: Path
) -> None:
    empty = topic(program, "cases")
    assert empty == {"folder": str(cases), "is_recording": True, "rows": []}
    began_us = time.time_ns() // 1000
    program.fail("load", "the first batch")
    (row,) = wait_for_cases(program, 1)
    assert row["actor"] == "loader[1]"
    assert row["failure"] == "load raised KeyError: 'the first batch'"
    assert row["messages"] == 1
    assert Path(row["path"]).parent == cases
    assert row["bytes"] == Path(row["path"]).stat().st_size
    assert row["saved_us"] >= began_us
    assert (row["is_earlier"], row["error"]) == (False, "")
    program.fail("store", str(tmp_path / "file"))
    second, first = wait_for_cases(program, 2)
    assert first == row
    assert second["failure"] == "store raised OSError: the file is closed"
    assert second["messages"] == 2


def test_a_case_is_shown_without_unpickling_it(program: CaseProgram, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    program.fail("store", str(marker))
    (row,) = wait_for_cases(program, 1)
    # The actor has unpickled its argument.
    marker.unlink()
    shown = topic(program, "case", file=row["file"])
    assert "reason       loader[1]: store raised OSError: the file is closed" in shown["text"]
    assert "#1 store(<io.open ...>) from 0.0" in shown["text"]
    assert shown["command"] == f"mesh replay '{row['path']}' --trust"
    assert not marker.exists()


def test_only_cases_in_the_folder_can_be_shown(program: CaseProgram, cases: Path) -> None:
    cases.mkdir()
    (cases / "damaged.case").write_bytes(b"this is no case")
    (cases.parent / "outside.case").write_bytes(b"secret")
    (cases / "notes.txt").write_bytes(b"secret")
    (row,) = topic(program, "cases")["rows"]
    assert (row["file"], row["actor"], row["messages"]) == ("damaged.case", "", None)
    assert "cannot read the case" in row["error"]
    assert "cannot read the case" in topic(program, "case", file="damaged.case")["error"]
    for file in ("../outside.case", str(cases.parent / "outside.case"), "notes.txt", "", ".."):
        assert "is not the name of a case" in topic(program, "case", file=file)["error"]


def test_a_case_of_an_earlier_program_is_marked(
    program: CaseProgram, place: Path, cases: Path
) -> None:
    program.fail("load", "a batch")
    wait_for_cases(program, 1)
    # This program started later, and saves its cases in the same folder.
    with case_program(place, cases) as later:
        assert [row["is_earlier"] for row in wait_for_cases(later, 1)] == [True]
        later.fail("load", "another batch")
        assert [row["is_earlier"] for row in wait_for_cases(later, 2)] == [False, True]


def test_cases_require_a_token(program: CaseProgram) -> None:
    for name in ("cases", "case?file=a.case"):
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"{program.served.url}/topics/{name}", timeout=LIMIT_S)
