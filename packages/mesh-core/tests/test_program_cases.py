"""`ProgramCases` lists and shows the cases in the folder of a program."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from case_samples import MakesMarker, sample

from mesh_core import configured
from mesh_core._cases import case_file, saved_case
from mesh_core._cases.case_file import write_case
from mesh_core.case import CaseError, ProgramCases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder in which the program saves its cases."""
    with configured(record_dir=tmp_path):
        yield tmp_path


def test_a_folder_that_does_not_exist_has_no_cases(tmp_path: Path) -> None:
    with configured(record_dir=tmp_path / "missing"):
        cases = ProgramCases()
        assert cases.folder == tmp_path / "missing"
        assert cases.cases() == []


def test_the_newest_case_comes_first(folder: Path) -> None:
    for at in range(3):
        write_case(folder / f"{at}.case", sample(created_ns=10**18 + (at % 2) * 10**9 + at))
        os.utime(folder / f"{at}.case", ns=(at, at))
    (folder / "notes.txt").write_text("no case")
    cases = ProgramCases()
    assert [one.path.name for one in cases.cases()] == ["1.case", "2.case", "0.case"]
    assert [one.path.name for one in cases.cases(count_max=1)] == ["2.case"]


def test_a_case_is_described_by_its_failed_actor(folder: Path) -> None:
    write_case(folder / "a.case", sample(reason="trainers[0]: step raised \x1b[31m"))
    (one,) = ProgramCases().cases()
    assert (one.actor, one.host, one.message_count) == ("trainers[0]", "w0", 2)
    assert one.failure == "step raised \\x1b[31m"
    assert one.size == (folder / "a.case").stat().st_size
    assert one.job == bytes(range(16)).hex()


def test_a_damaged_file_does_not_hide_other_cases(folder: Path) -> None:
    write_case(folder / "a.case", sample())
    (folder / "b.case").write_bytes(b"damaged")
    errors = {one.path.name: one.error for one in ProgramCases().cases()}
    assert errors["a.case"] == ""
    assert "cannot read the case" in errors["b.case"]


def test_a_file_is_read_once_until_it_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_case(folder / "a.case", sample(reason="trainers[0]: before"))
    cases = ProgramCases()
    before = cases.cases()
    with monkeypatch.context() as patch:
        patch.delattr(saved_case, "read_summary")
        assert cases.cases() == before
    write_case(folder / "a.case", sample(reason="trainers[0]: afterwards"))
    assert [one.failure for one in cases.cases()] == ["afterwards"]
    (folder / "a.case").unlink()
    assert cases.cases() == []


def test_messages_of_a_long_log_are_not_counted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_case(folder / "a.case", sample())
    monkeypatch.setattr(case_file, "COUNTED_LOG_LEN_MAX", 100)
    (one,) = ProgramCases().cases()
    assert (one.message_count, one.error) == (None, "")


def test_a_report_decodes_no_payload(folder: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    write_case(folder / "a.case", sample(hostile=MakesMarker(marker)))
    marker.unlink(missing_ok=True)
    report = ProgramCases().report("a.case")
    assert "#2 step((1, 2), <bytes, 75 KiB>, " in report
    assert not marker.exists()


def test_the_error_for_an_oversized_case_refers_to_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_case(folder / "a.case", sample())
    monkeypatch.setattr(saved_case, "_REPORT_CONTENT_LEN_MAX", 100)
    with pytest.raises(CaseError, match=r"run python -m mesh_core\.case show"):
        ProgramCases().report("a.case")


@pytest.mark.parametrize("name", ["", "..", "../a.case", "/tmp/a.case", "notes.txt", "a\0.case"])
def test_a_report_is_limited_to_cases_in_the_folder(folder: Path, name: str) -> None:
    with pytest.raises(CaseError, match="is not the name of a case"):
        ProgramCases().report(name)
