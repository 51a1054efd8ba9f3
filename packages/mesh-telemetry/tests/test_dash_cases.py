"""The page of saved cases in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from case_program import CaseProgram, case_program
from shown_program import EVIL, browser, page_of, ready, show

from mesh_telemetry._serve.dashboard_url import dashboard_url


def address_of(program: CaseProgram) -> Any:
    served = program.served
    return SimpleNamespace(dashboard_url=dashboard_url(served.url, served.token))


def test_a_new_case_appears_and_can_be_selected(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "cases"
    with (
        case_program(place, folder) as program,
        browser() as opened,
        page_of(opened, address_of(program)) as page,
    ):
        ready(page, "overview")
        names = page.locator("#tabs a").all_text_contents()
        assert names[-2:] == ["Stacks", "Cases"]
        show(page, "cases")
        page.get_by_text("Actors are recorded, and none has failed.").wait_for()
        page.evaluate("window.wasHere = true")
        program.fail("load", EVIL)
        rows = page.get_by_role("table", name="Saved cases").locator("tbody tr")
        rows.filter(has_text=f"load raised KeyError: {EVIL!r}").wait_for()
        # A later failure is above the earlier one.
        program.fail("store", str(tmp_path / "file"))
        rows.nth(1).wait_for()
        assert "store raised OSError" in rows.first.text_content()
        # The keyboard reaches the rows.
        button = rows.nth(1).get_by_role("button", name="loader[1]")
        button.focus()
        page.keyboard.press("Enter")
        report = page.locator("[data-part=report]")
        report.filter(has_text=f"#1 load({EVIL!r}) from").wait_for()
        assert "versions     " in report.text_content()
        command = page.locator("[data-part=command]").text_content()
        assert re.fullmatch(rf"mesh replay {folder}/\S+[.]case --trust", command), command
        assert "is-current" in rows.nth(1).get_attribute("class")
        assert page.evaluate("window.wasHere")
        page.get_by_role("searchbox").fill("oserror")
        page.wait_for_function("() => document.querySelectorAll('tr.choice').length === 1")
        page.get_by_role("searchbox").fill("no such actor")
        page.get_by_text("No case matches the filter.").wait_for()
        # The address selects the case again.
        page.get_by_role("searchbox").fill("")
        page.wait_for_function("() => document.querySelectorAll('tr.choice').length === 2")
        page.reload()
        report.filter(has_text="#1 load(").wait_for()
        assert page.locator("main img").count() == 0
        assert page.title() == "Mesh: cases"


def test_the_page_of_an_unrecorded_program_says_how_to_record_it(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "cases"
    with (
        case_program(place, folder, "quiet") as program,
        browser() as opened,
        page_of(opened, address_of(program)) as page,
    ):
        ready(page, "overview")
        show(page, "cases")
        advice = page.locator("[data-part=no-recording]")
        advice.filter(has_text="MESH_RECORD=*").filter(has_text="record()").wait_for()
        assert str(folder) in advice.text_content()
