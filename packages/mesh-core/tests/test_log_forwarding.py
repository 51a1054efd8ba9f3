"""The program shows the output of all processes: complete, once, in order and labelled."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from failing_actors import Worker
from whole_program import run

from mesh_core import ProcDied, this_host

if TYPE_CHECKING:
    from pathlib import Path

START = """
    procs = this_host().spawn_procs({"n": 2}, name="team")
    mesh = procs.spawn("worker", Speaker)
"""
SPEAKER = """
    import logging, subprocess
    class Speaker(Worker):
        @endpoint
        def all_ways(self):
            print("by print")
            sys.stderr.write("by stderr\\n")
            logging.getLogger("mine").warning("by logging")
            self.logger.info("by the actor's logger")
            ctypes.CDLL(None).puts(b"by C")
            os.write(1, b"by write\\n")
            subprocess.run(["echo", "by a child"])
        @endpoint
        def many(self, count):
            for n in range(count):
                print("line", n, file=(sys.stdout, sys.stderr)[n % 2])
        @endpoint
        def unfinished(self):
            print("no end of line", end="")
"""


def printed(folder: Path, rest: str) -> Any:
    """Run a program with two processes that print."""
    ended = run(folder, f"{SPEAKER}{START}\n{rest}\n")
    assert ended.status == 0, ended.err
    return ended


def test_all_output_is_forwarded_once_with_the_prefix_of_its_process(tmp_path: Path) -> None:
    ended = printed(tmp_path, "    mesh.slice(n=1).all_ways.call_one().get()")
    both = ended.out + ended.err
    for way in ("print", "stderr", "logging", "the actor's logger", "C", "write", "a child"):
        (line,) = [line for line in both.splitlines() if line.endswith(f"by {way}")]
        assert line.startswith("[team{"), line
        assert "1/2}" in line.partition("]")[0], line
    assert "by stderr" in ended.err
    assert "by stderr" not in ended.out


def test_lines_keep_their_order_within_a_process(tmp_path: Path) -> None:
    ended = printed(tmp_path, "    mesh.many.call(500).get()")
    for rank in range(2):
        mine = [
            line.rpartition(" ")[2]
            for line in (ended.out + ended.err).splitlines()
            if f"{rank}/2" in line.partition("]")[0]
        ]
        # Equal lines of both ranks may be merged under the name of one of them.
        assert mine == sorted(mine, key=lambda n: (int(n) % 2, int(n)))


def test_no_output_is_lost_when_the_program_exits(tmp_path: Path) -> None:
    ended = printed(
        tmp_path,
        """
    mesh.slice(n=0).many.broadcast(300)
    mesh.slice(n=0).unfinished.broadcast()
""",
    )
    both = (ended.out + ended.err).splitlines()
    assert sum("line" in line and "end of line" not in line for line in both) == 300
    assert sum("no end of line" in line for line in both) == 1


def test_the_last_output_of_a_dead_process_is_printed_and_in_the_error(tmp_path: Path) -> None:
    ended = printed(
        tmp_path,
        """
    try:
        mesh.slice(n=0).leave.call_one(3).get()
    except ProcDied as error:
        print(f"tail: {error.log_tail}")
""",
    )
    assert ended.out.count("last words") == 2
    assert "tail: ('last words',)" in ended.out


def test_the_log_tail_has_the_configured_length() -> None:
    with this_host().spawn_procs() as procs:
        mesh = procs.spawn("worker", Worker)
        mesh.print.call_one(*[f"line {n}" for n in range(100)]).get()
        with pytest.raises(ProcDied) as caught:
            mesh.leave.call_one(1).get()
        assert len(caught.value.log_tail) == 20
        assert caught.value.log_tail[-2] == "line 99"


def test_only_equal_lines_are_grouped(tmp_path: Path) -> None:
    # The window outlasts the program, so that even a slow process is within it.
    ended = run(
        tmp_path,
        f"""{SPEAKER}
    configure(log_group_window_s=3600)
    procs = this_host().spawn_procs({{"n": 8}}, name="team")
    mesh = procs.spawn("worker", Speaker)
    for rank in range(8):
        mesh.slice(n=rank).say.call_one(f"loss 0.{{rank}}").get()
    mesh.say.call("all say this").get()
    """,
    )
    assert ended.status == 0, ended.err
    for rank in range(8):
        assert ended.out.count(f"[team{{n: {rank}/8}}] loss 0.{rank}\n") == 1
    equal = [line for line in ended.out.splitlines() if line.endswith("all say this")]
    assert len(equal) < 8
    assert sorted(rank for line in equal for rank in ranks_of(line)) == list(range(8))


def ranks_of(line: str) -> list[int]:
    """Return the ranks in `[team{n: 3/8}] ...`, or in `[team 3 more: ranks 0-1,5] ...`."""
    if alone := re.match(r"\[team\{n: (\d)/8\}\] ", line):
        return [int(alone[1])]
    gathered = re.match(r"\[team (\d) more: ranks ([\d,-]+)\] ", line)
    assert gathered is not None, line
    spans = [span.partition("-") for span in gathered[2].split(",")]
    ranks = [n for first, _, last in spans for n in range(int(first), int(last or first) + 1)]
    assert len(ranks) == int(gathered[1]), line
    return ranks


def test_the_level_applies_only_to_logging_records(tmp_path: Path) -> None:
    ended = printed(
        tmp_path,
        """
    import logging
    asyncio.run(procs.logging_option(stream_to_client=True, level=logging.ERROR))
    mesh.slice(n=0).all_ways.call_one().get()
""",
    )
    assert "by print" in ended.out
    assert "by logging" not in ended.out + ended.err
    assert "by the actor's logger" not in ended.out + ended.err


def test_the_prefix_can_be_disabled(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        f"""{SPEAKER}
    configure(log_prefix=False)
    {START}
    mesh.slice(n=1).say.call_one("bare").get()
    """,
    )
    assert ended.out == "bare\n"


def test_streaming_can_be_turned_off(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        f"""{SPEAKER}
    configure(log_forward=False)
    {START}
    mesh.all_ways.call().get()
    print("of the program")
    """,
    )
    assert ended.out == "of the program\n"
    assert ended.err == ""


async def test_wrong_options_are_refused() -> None:
    with this_host().spawn_procs() as procs:
        with pytest.raises(RuntimeError, match="stream_to_client"):
            await procs.logging_option(aggregate_window_sec=1)
        for level in (-1, 256):
            with pytest.raises(ValueError, match="level"):
                await procs.logging_option(level=level)
        await procs.logging_option(stream_to_client=True, aggregate_window_sec=1, level=10)


def test_log_files_contain_the_output_of_each_process(tmp_path: Path) -> None:
    ended = run(
        tmp_path,
        f"""{SPEAKER}
    configure(log_dir="{tmp_path}/logs")
    {START}
    mesh.slice(n=1).say.call_one("kept").get()
    """,
    )
    assert ended.status == 0, ended.err
    kept = [path.read_text() for path in (tmp_path / "logs").iterdir()]
    assert "kept\n" in kept
