"""The message log: files that contain each message immediately, even if the process is killed."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from whole_program import run

from mesh_core import Actor, ProcDied, endpoint, this_proc
from mesh_core.spi import EventStream, MessageLog
from mesh_core.testing import LocalProcs, kill_proc, local_procs, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any


__all__ = ["local_procs"]

CALL = ["sent", "received", "taken", "answered", "completed"]
MARK = b"MESHTEST"


class Worker(Actor):
    def __init__(self) -> None:
        self.log: MessageLog | None = None

    @endpoint
    def add(self, n: int) -> int:
        return n + 1

    @endpoint
    def log_to(self, folder: Path, *, since_start: bool) -> None:
        self.log = MessageLog(100, since_start=since_start)
        extend(self.log, folder, 1)


def extend(log: MessageLog, folder: Path, number: int, records: int = 500) -> None:
    """Add a file to a log."""
    coming = folder / f"{number}.coming"
    length = MessageLog.HEADER.size + records * MessageLog.RECORD.size
    with open(coming, "w+b") as file:
        file.write(MessageLog.HEADER.pack(MARK, log.time_base_ns, 0, 0, 0))
        file.truncate(length)
        file.flush()
        log.extend(file.fileno(), length, coming, f"{folder}/{number}.", ".seg")


def records_in(folder: Path) -> Iterator[tuple[Any, ...]]:
    """Yield the records of all files that were started, as another process sees them."""
    for path in sorted(folder.glob("*.seg")):
        content = path.read_bytes()
        _, base_ns, count, _, _ = MessageLog.HEADER.unpack_from(content)
        end = MessageLog.HEADER.size + count * MessageLog.RECORD.size
        for record in MessageLog.RECORD.iter_unpack(content[MessageLog.HEADER.size : end]):
            yield record[0] + base_ns, *record[1:]


def kinds(folder: Path, names: tuple[str, ...], name: str) -> list[str]:
    """Return the kinds of records of the calls of an endpoint."""
    return [
        MessageLog.KINDS[record[6]] for record in records_in(folder) if names[record[8]] == name
    ]


def taken(folder: Path) -> list[tuple[Any, ...]]:
    """Return the endpoint calls that were taken from the mailbox."""
    return [
        record
        for record in records_in(folder)
        if MessageLog.KINDS[record[6]] == "taken" and record[8] != 0
    ]


def test_a_call_is_in_the_log_file_as_soon_as_it_returns(tmp_path: Path) -> None:
    worker = this_proc().spawn("worker", Worker)
    worker.add.call_one(0).get()
    log = MessageLog(100)
    try:
        extend(log, tmp_path, 1)
        for count in range(1, 4):
            worker.add.call_one(1).get()
            log.state()
            assert kinds(tmp_path, log.endpoint_names(), "add") == CALL * count
        (first, *_) = records_in(tmp_path)
        assert abs(first[0] - time.time_ns()) < 60 * 10**9
        (path,) = tmp_path.iterdir()
        assert path.name == f"1.{first[0] // 1000}.seg"
    finally:
        ended = log.close().ended
    assert [path for path, _ in ended] == [path]
    worker.add.call_one(1).get()
    assert len(list(records_in(tmp_path))) == (ended[0][1] - 64) // 64
    worker.stop().get()


def test_records_are_buffered_until_a_file_is_added(tmp_path: Path) -> None:
    worker = this_proc().spawn("worker", Worker)
    log = MessageLog(100)
    try:
        for _ in range(5):
            worker.add.call_one(0).get()
        assert log.state().wants_file
        extend(log, tmp_path, 1, records=8)
        assert log.state().wants_file
        extend(log, tmp_path, 2)
        state = log.state()
        assert (state.wants_file, state.dropped) == (False, 0)
        assert [path.name[0] for path in state.begun] == ["2"]
        assert [length for _, length in state.ended] == [64 * 9]
        assert kinds(tmp_path, log.endpoint_names(), "add") == CALL * 5
    finally:
        log.close()
    worker.stop().get()


def test_without_a_file_the_oldest_records_are_dropped_and_counted(tmp_path: Path) -> None:
    worker = this_proc().spawn("worker", Worker)
    worker.add.call_one(0).get()
    log = MessageLog(7)
    try:
        for _ in range(4):
            worker.add.call_one(0).get()
        assert log.state().dropped == 13
        extend(log, tmp_path, 1)
        assert kinds(tmp_path, log.endpoint_names(), "add") == [*CALL[-2:], *CALL]
    finally:
        log.close()
    worker.stop().get()


def test_a_killed_process_leaves_all_its_records_in_the_file(
    tmp_path: Path, local_procs: LocalProcs
) -> None:
    procs = local_procs()
    worker = procs.spawn("worker", Worker)
    worker.log_to.call_one(tmp_path, since_start=False).get()
    for _ in range(20):
        worker.add.call_one(0).get()
    kill_proc(procs, 0, signal.SIGKILL)
    assert len(taken(tmp_path)) == 20
    with pytest.raises(ProcDied):
        worker.add.call_one(0).get()


def test_a_log_can_include_messages_from_the_start_of_its_process(
    tmp_path: Path, local_procs: LocalProcs
) -> None:
    for since_start in (True, False):
        folder = tmp_path / str(since_start)
        folder.mkdir()
        with EventStream.subscribe(CALL):
            worker = local_procs().spawn("worker", Worker)
            worker.add.call_one(0).get()
            worker.log_to.call_one(folder, since_start=since_start).get()
        assert len(taken(folder)) == (2 if since_start else 0)


def test_a_log_outlives_a_job(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    ended = run(
        tmp_path,
        f"""
        from pathlib import Path
        from mesh_core.spi import MessageLog
        log = MessageLog(1000)
        for number, name in enumerate(("say", "add")):
            worker = this_host().spawn_procs().spawn("worker", Worker)
            path = Path({str(folder)!r}) / str(number)
            with open(path, "w+b") as file:
                file.write(MessageLog.HEADER.pack(b"MESHTEST", log.time_base_ns, 0, 0, 0))
                file.truncate(1 << 16)
                file.flush()
                log.extend(file.fileno(), 1 << 16, path, f"{{path}}.", ".seg")
            getattr(worker, name).call_one().get()
            shutdown_context().get()
            (ended,) = log.state().ended
            print(ended[0].name[0], log.endpoint_names())
        """,
    )
    assert (ended.status, ended.out.splitlines()) == (
        0,
        ["0 ('', 'say')", "1 ('', 'say', 'add')"],
    )
    assert len(list(records_in(folder))) > 10


def test_a_forked_child_does_not_write_to_the_log(tmp_path: Path) -> None:
    worker = this_proc().spawn("worker", Worker)
    log = MessageLog(100)
    try:
        extend(log, tmp_path, 1)
        worker.add.call_one(0).get()
        before = len(list(records_in(tmp_path)))
        pid = os.fork()
        if pid == 0:
            with EventStream.subscribe(["span_begin"]) as stream:
                os._exit(len(stream.poll()))
        wait_until(lambda: os.waitpid(pid, os.WNOHANG) == (pid, 0))
        assert len(list(records_in(tmp_path))) == before
    finally:
        log.close()
    worker.stop().get()


def test_an_invalid_buffer_size_or_file_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="waiting_max 0 is less than 1"):
        MessageLog(0)
    log = MessageLog(1)
    try:
        with open(tmp_path / "short", "w+b") as file, pytest.raises(OSError, match="too small"):
            log.extend(file.fileno(), 100, tmp_path / "short", "short.", ".seg")
    finally:
        log.close()
