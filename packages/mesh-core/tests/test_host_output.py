"""The output of processes reaches the controller."""

import threading
from pathlib import Path

from host_recorder import FOREVER, LIMIT_S, Recorder

from mesh_core._logging.line import LogLine
from mesh_core._processes.exit_report import ExitReport
from mesh_core._processes.local_host import LocalHost
from mesh_core._processes.process_spec import ProcSpec


def test_streams_are_distinguished_and_keep_their_order(recorder: Recorder) -> None:
    recorder.spawn(
        """
        import ctypes, logging, os, sys
        print("one")
        print("two", file=sys.stderr)
        logging.warning("three")
        ctypes.CDLL(None).puts(b"four")
        os.write(1, b"five\\n")
        print("six", end="")
        """
    )
    (report,) = recorder.wait_for_exits(1)
    recorder.host.flush(LIMIT_S)
    assert [(line.stream, line.text) for line in recorder.lines] == [
        ("stdout", "one"),
        ("stderr", "two"),
        ("stderr", "WARNING:root:three"),
        ("stdout", "four"),
        ("stdout", "five"),
        ("stdout", "six"),
    ]
    assert report.log_tail == ("two", "WARNING:root:three", "four", "five", "six")


def test_log_is_kept_in_a_file(recorder: Recorder, tmp_path: Path) -> None:
    recorder.output("print('kept')")
    assert (tmp_path / "logs" / "job_n__0_1-1.0.log").read_text() == "kept\n"


def test_a_flood_of_output_is_complete_and_in_order(recorder: Recorder) -> None:
    recorder.spawn("for n in range(30000): print('line', n)", count=2)
    recorder.wait_for_exits(2)
    assert recorder.host.flush(LIMIT_S)
    for slot in (1, 2):
        texts = [line.text for line in recorder.lines if line.slot == slot]
        assert texts == [f"line {n}" for n in range(30000)]


def test_death_is_reported_while_the_log_reader_is_stuck(tmp_path: Path, modules: Path) -> None:
    go, has_flooded, has_exit = threading.Event(), threading.Event(), threading.Event()
    exits: list[ExitReport] = []

    def on_exit(report: ExitReport) -> None:
        exits.append(report)
        has_exit.set()

    def on_log(line: LogLine) -> None:
        if line.slot == 1:
            has_flooded.set()
            go.wait(LIMIT_S)

    host = LocalHost(tmp_path / "job", on_exit=on_exit, on_log=on_log, launch="launch_for_test")
    flood = b"while True: print('x' * 1000)"
    host.spawn([ProcSpec(1, 0, "flood", flood), ProcSpec(2, 0, "quiet", FOREVER.encode())])
    assert has_flooded.wait(LIMIT_S)
    host.kill(2)
    assert has_exit.wait(LIMIT_S)
    assert [report.slot for report in exits] == [2]
    go.set()
    host.close(0)
    assert [report.slot for report in exits] == [2, 1]


def test_output_of_imports_in_the_template_is_not_lost(recorder: Recorder, modules: Path) -> None:
    (modules / "talks.py").write_text("print('on import')")
    recorder.output("", preload=["talks"])
    assert [line.name for line in recorder.lines if line.text == "on import"] == ["mesh"]
