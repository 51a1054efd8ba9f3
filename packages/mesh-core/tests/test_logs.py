"""The output of processes: split into lines, stored, and printed by the controller."""

import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh_core._logging.capture import (
    LINE_LEN_MAX,
    LineSplitter,
    LogForwarder,
    ProcLog,
    wait_while_moving,
)
from mesh_core._logging.line import LogLine, Stream
from mesh_core._logging.printer import LogPrinter, ranges, split_name
from mesh_core._system import stdio as _stdio


class Clock:
    """A clock that the test controls."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def stderr(text: str) -> bytes:
    return b"".join(_stdio.tagged(text.encode()))


def split(*pieces: bytes) -> list[tuple[Stream, str]]:
    splitter = LineSplitter(Clock())
    lines = [line for piece in pieces for line in splitter.feed(piece)]
    return lines + splitter.finish()


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ((b"one\ntwo\n",), [("stdout", "one"), ("stdout", "two")]),
        ((b"to", b"rn", b"\n"), [("stdout", "torn")]),
        ((b"\xc3", b"\xbc\n"), [("stdout", "\u00fc")]),
        ((b"bad \x80 byte\n",), [("stdout", "bad \ufffd byte")]),
        ((b"\n\n",), [("stdout", ""), ("stdout", "")]),
        ((b"windows\r\n",), [("stdout", "windows")]),
        ((b"no end",), [("stdout", "no end")]),
        ((stderr("bad\n"), b"good\n"), [("stderr", "bad"), ("stdout", "good")]),
        ((stderr("a\nb\n"),), [("stderr", "a"), ("stderr", "b")]),
        (
            (stderr("half "), b"other\n", stderr("line\n")),
            [("stdout", "other"), ("stderr", "half line")],
        ),
        ((b"half ", stderr("other\n"), b"line\n"), [("stderr", "other"), ("stdout", "half line")]),
        ((b"left", stderr("over")), [("stdout", "left"), ("stderr", "over")]),
        ((), []),
    ],
)
def test_output_is_split_into_lines_of_two_streams(
    pieces: tuple[bytes, ...], lines: list[tuple[Stream, str]]
) -> None:
    assert split(*pieces) == lines


@given(
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.text("ab\u00fc\u20ac"))),
    st.lists(st.integers(1, 7), min_size=1),
)
def test_lines_are_reassembled_from_arbitrary_chunks(
    lines: list[tuple[Stream, str]], sizes: list[int]
) -> None:
    written = b"".join(
        stderr(text + "\n") if stream == "stderr" else text.encode() + b"\n"
        for stream, text in lines
    )
    pieces: list[bytes] = []
    start = 0
    while start < len(written):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(written[start : start + size])
        start += size
    assert split(*pieces) == lines


def test_an_overlong_line_is_truncated_with_a_marker_and_the_next_is_intact() -> None:
    (_, cut), (_, after) = split(b"x" * LINE_LEN_MAX, b"y" * 1000, b"\nafter\n")
    assert cut.startswith("x" * LINE_LEN_MAX + " [cut")
    assert "y" not in cut
    assert after == "after"


def test_a_line_of_exactly_the_limit_is_not_truncated() -> None:
    assert split(b"x" * LINE_LEN_MAX + b"\n") == [("stdout", "x" * LINE_LEN_MAX)]


def test_long_stderr_line_is_one_line() -> None:
    text = "long" * 5000
    assert split(stderr(text + "\n")) == [("stderr", text)]


def test_a_progress_bar_is_shown_once_a_second_and_at_its_end() -> None:
    clock = Clock()
    splitter = LineSplitter(clock)
    seen = []
    for percent in range(0, 101, 10):
        seen += splitter.feed(stderr(f"\r{percent}%"))
        clock.now += 0.25
    seen += splitter.feed(stderr("\n"))
    assert seen == [("stderr", text) for text in ("0%", "40%", "80%", "100%")]


def open_log(tmp_path: Path, tail_lines: int = 3) -> tuple[ProcLog, int]:
    read, write = os.pipe()
    return ProcLog(1, 0, "job{gpus: 1/2}", read, tail_lines, tmp_path / "logs" / "1.log"), write


def test_a_log_keeps_its_tail_and_writes_a_file(tmp_path: Path) -> None:
    log, write = open_log(tmp_path)
    os.write(write, b"1\n2\n3\n" + stderr("4\n") + b"5")
    lines = log.finish()
    assert [line.text for line in lines] == ["1", "2", "3", "4", "5"]
    assert [line.stream for line in lines][3] == "stderr"
    assert log.tail == ("3", "4", "5")
    assert (tmp_path / "logs" / "1.log").read_text() == "1\n2\n3\n4\n5\n"
    os.close(write)
    assert log.read() is None
    log.close()


def test_output_is_forwarded_even_if_the_log_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("in the way")
    log, write = open_log(tmp_path)
    os.write(write, b"1\n2\n")
    assert [line.text for line in log.drain()] == ["1", "2"]
    assert capsys.readouterr().err.count("cannot keep the log of job{gpus: 1/2}") == 1
    os.close(write)
    log.close()


def line(rank: int, text: str, stream: Stream = "stdout", size: int = 8) -> LogLine:
    return LogLine(rank + 1, 0, f"job{{gpus: {rank}/{size}}}", stream, text, 0.0)


def printer() -> tuple[LogPrinter, Clock]:
    clock = Clock()
    return LogPrinter(0.2, clock=clock), clock


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def test_the_first_line_is_printed_immediately_and_repeats_as_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log, clock = printer()
    for rank in (0, 1, 2, 4):
        log(line(rank, "ready"))
    assert printed(capsys) == ["[job{gpus: 0/8}] ready"]
    clock.now += 0.3
    log.close_groups()
    assert printed(capsys) == ["[job 3 more: ranks 1-2,4] ready"]
    log(line(5, "ready"))
    assert printed(capsys) == ["[job{gpus: 5/8}] ready"]


def test_single_repeat_is_printed_as_a_plain_line(capsys: pytest.CaptureFixture[str]) -> None:
    log, _ = printer()
    log(line(0, "ready"))
    log(line(1, "ready"))
    log.flush()
    assert printed(capsys) == ["[job{gpus: 0/8}] ready", "[job{gpus: 1/8}] ready"]


def test_repeats_of_one_process_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    log, _ = printer()
    for _ in range(5):
        log(line(3, "again"))
    log.flush()
    assert printed(capsys) == ["[job{gpus: 3/8}] again", "[job 4 more: rank 3] again"]


def test_the_window_closes_without_further_output(capsys: pytest.CaptureFixture[str]) -> None:
    shown = threading.Event()

    class Stdout:
        def write(self, text: str) -> None:
            if "more" in text:
                shown.set()

        def flush(self) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", Stdout())
        now = [0.0]
        log = LogPrinter(0.01, clock=lambda: now[0])
        for rank in range(3):
            log(line(rank, "ready"))
        now[0] = 1.0
        assert shown.wait(10)


def test_different_lines_are_never_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    log, _ = printer()
    for rank in range(3):
        log(line(rank, f"loss {rank}"))
    log(line(0, "x"))
    log(line(0, "x", "stderr"))
    log.flush()
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [
        *(f"[job{{gpus: {rank}/8}}] loss {rank}" for rank in range(3)),
        "[job{gpus: 0/8}] x",
    ]
    assert captured.err == "[job{gpus: 0/8}] x\n"


def test_lines_of_different_meshes_are_not_grouped(capsys: pytest.CaptureFixture[str]) -> None:
    log, _ = printer()
    log(line(0, "ready"))
    log(LogLine(9, 0, "other{gpus: 0/8}", "stdout", "ready", 0.0))
    assert printed(capsys) == ["[job{gpus: 0/8}] ready", "[other{gpus: 0/8}] ready"]


def test_equal_lines_of_meshes_with_the_same_name_are_grouped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log, _ = printer()
    for size in (8, 4, 2):
        log(line(0, "ready", size=size))
    log.flush()
    assert printed(capsys) == ["[job{gpus: 0/8}] ready", "[job 2 more: rank 0] ready"]


def test_window_of_zero_prints_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    log = LogPrinter(0)
    for rank in range(3):
        log(line(rank, "ready"))
    assert printed(capsys) == [f"[job{{gpus: {rank}/8}}] ready" for rank in range(3)]


def expand(shown: list[str]) -> list[tuple[int, str]]:
    """Return rank and text of each printed line; for a group, of each of its ranks."""
    lines = []
    for item in shown:
        who, _, text = item[1:].partition("] ")
        if "{" in who:
            lines.append((split_name(who, 0)[1], text))
        else:
            for part in who.rpartition(" ")[2].split(","):
                first, _, last = part.partition("-")
                lines += [(rank, text) for rank in range(int(first), int(last or first) + 1)]
    return lines


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abcd"), st.booleans()), max_size=40))
def test_grouping_keeps_the_order_and_number_of_lines_of_each_process(
    events: list[tuple[int, str, bool]],
) -> None:
    shown: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mesh_core._logging.printer._print", lambda stream, text: shown.append(text))
        log, clock = printer()
        for rank, text, is_pause in events:
            log(line(rank, text))
            clock.now += 0.15 if is_pause else 0.0
        log.close()
    for rank in range(4):
        said = [text for who, text, _ in events if who == rank]
        heard = [text for who, text in expand(shown) if who == rank]
        assert collapse(heard) == collapse(said)
    count = sum(int(item.split()[1]) if " more: " in item else 1 for item in shown)
    assert count == len(events)


def collapse(texts: list[str]) -> list[str]:
    """Remove immediate repetitions, because a group shows only their number."""
    return [text for index, text in enumerate(texts) if index == 0 or texts[index - 1] != text]


def test_a_closed_stdout_is_not_an_error() -> None:
    class Closed:
        def write(self, text: str) -> None:
            raise BrokenPipeError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", Closed())
        LogPrinter(0)(line(0, "lost"))
        patch.setattr("sys.stdout", None)
        LogPrinter(0)(line(0, "lost"))


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("job{gpus: 3/8}", ("job", 3)),
        ("job{hosts: 1/2, gpus: 3/8}", ("job", 11)),
        ("job", ("job", 77)),
        ("odd{name", ("odd{name", 77)),
        ("odd{what ever}", ("odd{what ever}", 77)),
    ],
)
def test_mesh_and_rank_are_parsed_from_a_name(name: str, place: tuple[str, int]) -> None:
    assert split_name(name, 77) == place


def test_ranks_are_abbreviated_as_ranges() -> None:
    assert ranges([3, 1, 2, 7, 9, 8, 12]) == "1-3,7-9,12"


def forward(on_log: Callable[[LogLine], None], on_capacity: Callable[[], None]) -> LogForwarder:
    return LogForwarder(on_log, on_capacity, queue_len_max=4, queue_chars_max=1000)


def test_a_slow_reader_fills_the_queue_and_free_space_is_reported() -> None:
    go, has_capacity = threading.Event(), threading.Event()
    seen: list[str] = []

    def slowly(item: LogLine) -> None:
        go.wait(10)
        seen.append(item.text)

    forwarder = forward(slowly, has_capacity.set)
    for number in range(6):
        forwarder.put([line(0, str(number))])
    assert forwarder.is_full
    assert not forwarder.flush(0.01)
    go.set()
    assert has_capacity.wait(10)
    assert forwarder.flush(10)
    assert seen == [str(number) for number in range(6)]
    assert not forwarder.is_full
    assert forwarder.close(10)


def test_a_wait_continues_while_there_is_progress() -> None:
    shown = itertools.count()
    last = 0

    def show_one() -> int:
        nonlocal last
        last = next(shown)
        return last

    condition = threading.Condition()
    with condition:
        assert wait_while_moving(condition, lambda: last >= 20, show_one, 0.001)
        assert not wait_while_moving(condition, lambda: False, lambda: last, 0.001)


def test_a_reader_that_raises_receives_the_next_line(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def fail_first(item: LogLine) -> None:
        seen.append(item.text)
        if len(seen) == 1:
            raise LookupError("broken reader")

    forwarder = forward(fail_first, lambda: None)
    forwarder.put([line(0, "1"), line(0, "2")])
    assert forwarder.flush(10)
    assert seen == ["1", "2"]
    assert "broken reader" in capsys.readouterr().err
    assert forwarder.close(10)
