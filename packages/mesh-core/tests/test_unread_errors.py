"""An exception of a call whose future was dropped is not lost silently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whole_program import run

if TYPE_CHECKING:
    from pathlib import Path

LINE = "a call has raised an exception that nobody has seen, because its future was dropped"


def test_an_exception_of_a_dropped_future_is_reported(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        worker = this_host().spawn_procs().spawn("worker", Worker)
        for _ in range(3):
            worker.fail.call_one("forgotten")
        future = worker.fail.call_one("late")
        # Replies arrive in the order of the calls.
        worker.add.call_one().get()
        del future
        worker.add.call_one().get()
        """,
    )
    assert ended.status == 0
    assert ended.err.count(LINE) == 2
    assert ended.err.count("KeyError: 'forgotten'") == 1
    assert ended.err.count("KeyError: 'late'") == 1


def test_exceptions_that_were_seen_or_cancelled_are_not_reported(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        """
        procs = this_host().spawn_procs(n=2)
        workers = procs.spawn("workers", Worker)
        for future in (workers.fail.call(), workers.fail.choose()):
            assert isinstance(future.exception(), KeyError)
        calls = [workers.slice(n=0).sleep.call_one(0.1), workers.slice(n=0).fail.call_one()]
        assert calls[1].cancel()
        results = workers.fail.options(return_exceptions=True).call().get()
        assert len(results) == 2
        del calls, results, future
        workers.add.call().get()
        """,
    )
    assert ended.status == 0
    assert LINE not in ended.err
