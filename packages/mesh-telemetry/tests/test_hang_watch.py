"""A program reports the start and the end of a hang without a request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from collective_actors import SIZE, WORLD, Trainer, make_fifos, release
from recorded_actors import LIMIT_S
from recorded_program import config

from mesh_core import this_host
from mesh_core.testing import wait_until
from mesh_telemetry import Telemetry, TelemetryConfig
from mesh_telemetry._hangs.hang_watch import HangWatch
from mesh_telemetry._hangs.process_state import ProcessState


@pytest.fixture
def telemetry(place: Path, tmp_path: Path) -> Iterator[Telemetry]:
    """Telemetry of a program whose rank 2 does not join the sixth collective."""
    make_fifos(str(tmp_path))
    with Telemetry(config(place)) as made:
        procs = this_host().spawn_procs({"gpus": SIZE}, name="train")
        training = procs.spawn("trainers", Trainer, str(tmp_path)).train.call(5, 2)
        yield made
        if not training.done():
            release(str(tmp_path))
        training.get(LIMIT_S)
        procs.stop().get(LIMIT_S)


def rows_of(telemetry: Telemetry, event_type: str) -> Callable[[], list[dict[str, Any]]]:
    """Return a function that returns the rows with an event."""
    sql = "select * from hangs where event_type = $1"
    return lambda: telemetry.query(sql, [event_type]).table.to_pylist()


def test_a_hang_is_reported_once_and_so_is_its_end(
    telemetry: Telemetry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (row,) = wait_until(rows_of(telemetry, "begin"), LIMIT_S)
    assert (row["kind"], row["rank"], row["mesh"]) == ("blocked", 2, "train")
    assert row["at"].endswith("in Trainer.load")
    assert (row["operation"], row["sequence"], row["process_group"]) == ("all_reduce", 5, "0")
    assert row["waited_s"] >= 0.8
    (hang,) = telemetry.why()
    assert hang.collective is not None
    assert hang.collective.ranks == (0, 1)
    release(str(tmp_path))
    (ended,) = wait_until(rows_of(telemetry, "end"), LIMIT_S)
    assert ended["rank"] == 2
    assert len(rows_of(telemetry, "begin")()) == 1
    texts = [record.getMessage() for record in caplog.records if record.name == "mesh_telemetry"]
    found, continued = [text for text in texts if "collective" in text]
    assert "rank 2 of 'train'" in found
    assert "rank 0-1 wait in all_reduce #5 of group '0'" in found
    assert continued.startswith("mesh: a collective continues that had hung")


def test_collectives_are_recorded_as_rows(telemetry: Telemetry) -> None:
    sql = """
        select rank, count(*) as n, count(left_us) as ended from collectives
        group by rank order by rank
    """
    expected = [{"rank": rank, "n": 6 - (rank == 2), "ended": 5} for rank in range(SIZE)]
    wait_until(lambda: telemetry.query(sql).table.to_pylist() == expected, LIMIT_S)
    row = telemetry.query("select * from collectives where rank = 0 order by sequence limit 1")
    (first,) = row.table.to_pylist()
    assert (first["world"], first["process_group"], first["mesh"]) == (WORLD, "0", "train")
    assert (first["shape"], first["bytes"], first["function"]) == (
        "float32[4]", 16, "Trainer.train",
    )  # fmt: skip
    assert first["left_us"] >= first["entered_us"]


def test_the_watch_continues_after_a_failed_search(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    searches = []

    def fail() -> list[ProcessState]:
        searches.append(1)
        raise RuntimeError("it is broken")

    watch = HangWatch(1.0)
    # Watches of other telemetry in this process must not fail.
    monkeypatch.setattr(watch._states, "now", fail)
    for number in (1, 2):
        watch.stalled([])
        wait_until(lambda number=number: len(searches) == number, LIMIT_S)  # type: ignore[misc]
    watch.close()
    assert caplog.text.count("the search for hangs failed") == 1


def test_no_hang_is_reported_if_the_watch_is_disabled(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="hang_timeout_s 0 is not positive"):
        TelemetryConfig(hang_timeout_s=0)
    make_fifos(str(tmp_path))
    with Telemetry(TelemetryConfig(directory=str(place), hang_timeout_s=None)) as telemetry:
        procs = this_host().spawn_procs({"gpus": SIZE}, name="train")
        training = procs.spawn("trainers", Trainer, str(tmp_path)).train.call(5, 2)
        # An automatic report would need less time than these observations.
        hangs = wait_until(lambda: [one for one in telemetry.why() if one.is_certain], LIMIT_S)
        assert hangs[0].culprits[0].rank == 2
        assert rows_of(telemetry, "begin")() == []
        release(str(tmp_path))
        training.get(LIMIT_S)
        procs.stop().get(LIMIT_S)


def test_a_hang_is_logged_as_a_warning(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until(rows_of(telemetry, "begin"), LIMIT_S)
    (record,) = [one for one in caplog.records if "a collective hangs" in one.getMessage()]
    assert record.levelno == logging.WARNING
