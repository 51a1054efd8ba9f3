"""Processes that are fresh interpreters."""

import os
import sys

import pytest
from host_recorder import Recorder

from mesh_core._processes.command import BootstrapCommand, take_entry


def fresh() -> BootstrapCommand:
    return BootstrapCommand.default("launch_for_test")


def test_command_is_executed_with_its_environment(recorder: Recorder) -> None:
    show = """
        import os, sys
        print(os.environ.get("MESH_TEST_A"), os.environ.get("MESH_TEST_B"), "HOME" in os.environ)
        print(sys.flags.dont_write_bytecode, "MESH_PROC_ENTRY" in os.environ)
        print(open("/proc/self/cmdline").read().split("\\0")[0])
        print("oops", file=sys.stderr)
        """
    command = BootstrapCommand(sys.executable, "named", ("-B", "-m", "launch_for_test"))
    command = command.with_env({"MESH_TEST_A": "a", "MESH_TEST_B": "b", "HOME": None})
    printed = recorder.output(show, command=command, env={"MESH_TEST_B": "c"})
    assert printed == ["a c False", "1 False", "named", "oops"]
    assert [line.stream for line in recorder.lines] == ["stdout"] * 3 + ["stderr"]


def test_command_may_start_from_an_empty_environment(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_TEST", "here")
    path = {"PYTHONPATH": os.environ["PYTHONPATH"]}
    command = BootstrapCommand(sys.executable, None, ("-m", "launch_for_test"), path, False)
    assert recorder.output("import os\nprint('MESH_TEST' in os.environ)", command=command) == [
        "False"
    ]


@pytest.mark.parametrize("is_fresh", [False, True])
def test_large_entry_reaches_its_process(recorder: Recorder, is_fresh: bool) -> None:
    program = f"print(len({'x' * 3_000_000!r}))"
    assert recorder.output(program, command=fresh() if is_fresh else None) == ["3000000"]


def test_the_error_names_a_missing_program(recorder: Recorder) -> None:
    recorder.spawn("", command=BootstrapCommand("/no/such/python"))
    (report,) = recorder.wait_for_exits(1)
    assert report.reason == (
        f"job{{n: 0/1}} (pid {report.pid}) could not start: "
        "cannot execute '/no/such/python': No such file or directory"
    )
    assert report.exit_code == 127


def test_command_can_be_pickled_and_changed() -> None:
    import pickle

    command = BootstrapCommand.default().with_env({"A": "1", "B": None}).with_env({"A": "2"})
    assert command.program == sys.executable
    assert command.env == {"A": "2", "B": None}
    assert pickle.loads(pickle.dumps(command)) == command
    assert take_entry({}) is None
