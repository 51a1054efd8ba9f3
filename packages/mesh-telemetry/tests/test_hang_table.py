"""The table of hangs: the recorded rows, and the hangs that are open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from recorded_program import config

from mesh_telemetry import Culprit, Hang, Telemetry, WaitingCollective
from mesh_telemetry._hangs.tables import HANG_ROWS, hang_line, open_hangs, record_hang
from mesh_telemetry._top.json_snapshot import is_healthy
from mesh_telemetry._top.snapshot import Snapshot

AT = WaitingCollective("all_reduce", 41, "0", "node:1", (0, 1, 3), 1.5, "train.py:31 in step")
CULPRIT = Culprit(2, "blocked", "is blocked", "/job/loader.py:88 in load", "train", "1.1", 7, "b")
HANG = Hang("blocked", AT, (CULPRIT,), is_certain=True)


def row(event_type: str, **changed: object) -> dict[str, Any]:
    """A row of the table."""
    return {
        "event_type": event_type, "rank": 2, "mesh": "train", "culprit_proc": "1.1",
        "process_group": "0", "sequence": 41, "reason": "is blocked", "operation": "all_reduce",
        "at": "/job/loader.py:88 in load", **changed,
    }  # fmt: skip


def test_a_hang_is_open_until_it_ends(place: Path) -> None:
    with Telemetry(config(place)) as telemetry:
        record_hang(HANG, "begin")
        (found,) = open_hangs(telemetry.query(HANG_ROWS).table.to_pylist())
        assert (found["kind"], found["rank"], found["culprit_host"]) == ("blocked", 2, "b")
        record_hang(HANG, "end")
        assert open_hangs(telemetry.query(HANG_ROWS).table.to_pylist()) == []


def test_the_end_of_one_hang_leaves_the_others_open() -> None:
    other = row("begin", rank=3)
    assert open_hangs([row("end"), other, row("begin")]) == [other]
    assert open_hangs([row("begin"), row("end"), row("begin")]) == [row("begin")]


def test_a_hang_is_described_in_one_line() -> None:
    assert hang_line(row("begin")) == (
        "rank 2 of 'train' is blocked at loader.py:88 in load; others wait in all_reduce #41"
    )
    unknown = row("begin", at="", mesh="", operation=None)
    assert hang_line(unknown) == "rank 2 is blocked"


def test_a_program_that_hangs_is_not_healthy() -> None:
    assert is_healthy(Snapshot(0.0))
    assert not is_healthy(Snapshot(0.0, hangs=[row("begin")]))
