"""The program shows all output of processes on other hosts, in order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from whole_program import run
from workers import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LINES = 20_000


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a worker."""
    with WorkerProcess() as worker:
        yield worker.address


def test_lines_from_other_hosts_are_prefixed_like_local_lines(address: str, tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        f"""
        from mesh_core import attach_to_workers
        import sys
        class Talker(Actor):
            @endpoint
            def talk(self):
                print("to out", current_rank().rank)
                print("to err", current_rank().rank, file=sys.stderr)
        from mesh_core import current_rank
        procs = attach_to_workers([{address!r}]).spawn_procs({{"procs": 2}}, name="talkers")
        procs.spawn("talker", Talker).talk.call().get()
        """,
    )
    assert ended.status == 0
    place = "[talkers{hosts: 0/1, procs: %d/2}]"
    for rank in range(2):
        assert f"{place % rank} to out {rank}" in ended.out
        assert f"{place % rank} to err {rank}" in ended.err


@pytest.mark.parametrize("end", ["", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_no_line_is_lost_regardless_of_how_a_process_exits(
    address: str, tmp_path: Path, end: str
) -> None:
    ended = run(
        tmp_path,
        f"""
        import os, sys
        from mesh_core import SupervisionError, attach_to_workers
        class Talker(Actor):
            @endpoint
            def talk(self):
                for number in range({LINES}):
                    print("line", number)
                sys.stdout.flush()
                {end or "pass"}
        procs = attach_to_workers([{address!r}]).spawn_procs(name="talkers")
        try:
            procs.spawn("talker", Talker).talk.call_one().get()
        except SupervisionError as error:
            # In one piece: the lines of the process are printed by another thread.
            sys.stdout.write(type(error).__name__ + "\\n")
            procs.stop().get()
        """,
        limit_s=60.0,
    )
    assert ended.status == 0, ended.err
    assert ("ProcDied" in ended.out) == bool(end)
    numbers = [int(number) for number in re.findall(r"^\[.*\] line (\d+)$", ended.out, re.M)]
    assert numbers == list(range(LINES))


def test_all_lines_are_shown_before_stop_returns(address: str, tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        f"""
        import sys
        from mesh_core import attach_to_workers
        class Talker(Actor):
            @endpoint
            def talk(self):
                for number in range({LINES}):
                    print("line", number)
        procs = attach_to_workers([{address!r}]).spawn_procs()
        procs.spawn("talker", Talker).talk.broadcast()
        procs.stop().get()
        print("stopped", flush=True)
        """,
        limit_s=60.0,
    )
    assert ended.status == 0, ended.err
    assert ended.out.splitlines()[-2:] == [f"[procs{{hosts: 0/1}}] line {LINES - 1}", "stopped"]
