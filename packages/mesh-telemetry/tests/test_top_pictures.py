"""A picture of `mesh top` for its guide, updated by `-m slow`."""

from __future__ import annotations

from pathlib import Path

import pytest
from top_pilot import top
from top_program import program

IMAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "images" / "top.svg"
LENGTH_MAX = 150_000


@pytest.mark.slow
async def test_a_picture_of_a_program_with_a_failure_and_a_deadlock(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with program(place, hosts=1) as running:
        running.do("say good morning")
        running.do("fail no more data")
        running.do("lock")
        async with top(running.pid, size=(140, 34)) as person:
            await person.until(lambda: {"team[0]"} <= set(person.titles("failed")))
            await person.until(lambda: {"pair[0]", "pair[1]"} <= set(person.titles("deadlock")))
            await person.go("team[0]")
            await person.press("right")
            await person.until(lambda: "trainers[0]" in person.titles("failed"))
            await person.go("pair[0]")
            await person.press("4")
            await person.until(lambda: "Trainer.ask" in person.tab("Stacks"))
            IMAGE.write_text(person.app.export_screenshot(title="mesh top"))
    assert IMAGE.stat().st_size < LENGTH_MAX
