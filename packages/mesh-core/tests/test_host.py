"""Processes of a host: how they start, and how their exits are reported."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from host_recorder import FOREVER, LIMIT_S, Recorder, is_alive, wait_until_gone

from mesh_core._processes.exit_report import ExitReport

# The tests below check the start of processes.


def test_a_process_runs_its_entry_and_its_exit_is_reported(recorder: Recorder) -> None:
    recorder.spawn("print('hello')")
    (report,) = recorder.wait_for_exits(1)
    assert (report.slot, report.incarnation, report.exit_code, report.signal) == (1, 0, 0, None)
    assert report.log_tail == ("hello",)
    assert report.reason == f"job{{n: 0/1}} (pid {report.pid}) exited with status 0"
    assert recorder.host.pid(1) is None


def test_many_processes_each_have_their_own_slot_and_session(recorder: Recorder) -> None:
    recorder.spawn("import os\nprint('is', os.getpid(), os.getsid(0))\n" + FOREVER, count=70)
    recorder.wait_for_lines(70, "is")
    for line in list(recorder.lines):
        if line.text.startswith("is"):
            pid = str(recorder.pid(line.slot))
            assert line.text == f"is {pid} {pid}"


def test_spawn_does_not_wait_for_the_processes(recorder: Recorder, modules: Path) -> None:
    latch = modules / "latch"
    os.mkfifo(latch)
    (modules / "waits.py").write_text(f"open({str(latch)!r}).read()")
    recorder.spawn("print('ran')", preload=["waits"])
    assert recorder.host.pid(1) is None
    latch.write_text("open")
    recorder.wait_for_exits(1)


def test_process_starts_with_a_clean_slate(recorder: Recorder) -> None:
    printed = recorder.output(
        """
        import gc, os, signal, sys, __main__
        print(os.path.realpath("/dev/stdin"))
        print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
        print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
        print(signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL, signal.set_wakeup_fd(-1))
        print(sorted(set(os.listdir("/proc/self/fd")) - set("012"))[1:])
        print(gc.isenabled(), len(os.listdir("/proc/self/task")))
        print([name for name in vars(__main__) if not name.startswith("_")])
        print(sys.argv)
        """
    )
    assert printed == [
        "/dev/null", "True", "True", "True -1", "[]", "True 1", "[]", str([sys.argv[0]]),
    ]  # fmt: skip


def test_a_process_inherits_the_controllers_environment_at_spawn_time(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = "import os, sys\nprint(os.environ.get('MESH_TEST'), os.getcwd(), sys.path[0])"
    monkeypatch.setenv("MESH_TEST", "one")
    before = recorder.output(show)
    monkeypatch.setenv("MESH_TEST", "two")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("/elsewhere")
    after = recorder.output(show)
    monkeypatch.delenv("MESH_TEST")
    without = recorder.output(show)
    assert before[0].startswith("one ")
    assert after[-1] == f"two {tmp_path} /elsewhere"
    assert without[-1] == f"None {tmp_path} /elsewhere"


def test_the_environment_of_a_process_can_be_changed(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_TEST_GONE", "here")
    show = "import os\nprint(os.environ.get('MESH_TEST_NEW'), os.environ.get('MESH_TEST_GONE'))"
    printed = recorder.output(show, env={"MESH_TEST_NEW": "new", "MESH_TEST_GONE": None})
    assert printed == ["new None"]


def test_variables_read_at_interpreter_start_cause_a_fresh_interpreter(recorder: Recorder) -> None:
    show = "import sys\nprint(sys.flags.optimize)"
    assert recorder.output(show, env={"PYTHONOPTIMIZE": "2"}) == ["2"]


def test_random_numbers_differ_between_processes(recorder: Recorder) -> None:
    recorder.spawn("import random\nprint(random.random())", count=4, preload=["random"])
    recorder.wait_for_exits(4)
    recorder.host.flush(LIMIT_S)
    assert len(set(recorder.texts())) == 4


def test_process_is_bound_to_processors(recorder: Recorder) -> None:
    cpu = str(max(os.sched_getaffinity(0)))
    show = "import os\nprint(os.sched_getaffinity(0))"
    assert recorder.output(show, bind={"physcpubind": cpu}) == [f"{{{cpu}}}"]
    assert recorder.output(show, bind={"cpunodebind": "0", "cpus": cpu})[-1] == f"{{{cpu}}}"


@pytest.mark.parametrize(
    ("bind", "message"),
    [
        ({"cpu": "1"}, "unknown binding 'cpu'"),
        ({"cpus": "1-"}, "malformed cpus '1-'"),
        ({"cpus": "99999"}, "cpus '99999' is not on this host"),
        ({"membind": "512"}, "membind '512' is not on this host"),
    ],
)
def test_an_invalid_binding_is_refused_before_any_process_starts(
    recorder: Recorder, bind: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        recorder.spawn("", bind=bind)
    assert recorder.host.pid(1) is None
    recorder.output("")


def test_an_occupied_slot_is_refused(recorder: Recorder) -> None:
    recorder.spawn(FOREVER)
    with pytest.raises(ValueError, match=r"slots are taken: \[\(1, 0\)\]"):
        recorder.spawn(FOREVER)
    recorder.spawn(FOREVER, incarnation=1)
    recorder.wait_for_lines(2, "up")


def test_no_process_starts_without_enough_descriptors(recorder: Recorder) -> None:
    import resource

    recorder.output("")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        with pytest.raises(OSError, match="cannot open 40 pipes for logs"):
            recorder.spawn("", count=40)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    recorder.spawn("", count=40)
    assert {report.exit_code for report in recorder.wait_for_exits(41)} == {0}


# The tests below check the exit of processes.


@pytest.mark.parametrize(
    ("program", "code"),
    [("raise SystemExit(7)", 7), ("code = 3", 3), ("raise SystemExit", 0), ("1 / 0", 1)],
)
def test_exit_status_is_reported(recorder: Recorder, program: str, code: int) -> None:
    recorder.spawn(program)
    (report,) = recorder.wait_for_exits(1)
    assert report.exit_code == code
    assert report.reason.endswith(f"exited with status {code}")


def test_the_log_tail_ends_with_the_traceback(recorder: Recorder) -> None:
    recorder.spawn("print('before')\n1 / 0")
    (report,) = recorder.wait_for_exits(1)
    assert report.log_tail[-1] == "ZeroDivisionError: division by zero"


def test_cleanup_registered_by_the_program_runs(recorder: Recorder) -> None:
    assert recorder.output("import atexit\natexit.register(print, 'bye')") == ["bye"]


def test_killed_process_is_reported_with_its_signal(recorder: Recorder) -> None:
    recorder.spawn(FOREVER)
    recorder.wait_for_lines(1, "up")
    pid = recorder.pid(1)
    os.kill(pid, signal.SIGKILL)
    (report,) = recorder.wait_for_exits(1)
    assert (report.pid, report.exit_code, report.signal) == (pid, None, signal.SIGKILL)
    assert "was killed by SIGKILL from outside" in report.reason


def test_death_is_noticed_in_milliseconds(recorder: Recorder) -> None:
    took = []
    for incarnation in range(5):
        recorder.spawn(FOREVER, incarnation=incarnation)
        recorder.wait_for_lines(incarnation + 1, "up")
        pid = recorder.pid(1, incarnation)
        start = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        recorder.wait_for_exits(incarnation + 1)
        took.append(time.monotonic() - start)
    assert min(took) < 0.05


def test_kill_sends_the_requested_signal(recorder: Recorder) -> None:
    recorder.spawn(FOREVER, count=2)
    recorder.wait_for_lines(2, "up")
    recorder.host.kill(1, signal.SIGTERM)
    recorder.host.kill(2)
    reports = recorder.wait_for_exits(2)
    assert [report.signal for report in reports] == [signal.SIGTERM, signal.SIGKILL]
    assert all(report.reason.endswith(", as requested") for report in reports)
    recorder.host.kill(1)
    recorder.host.kill(99)


def test_crash_leaves_the_python_stack_in_the_log(recorder: Recorder) -> None:
    recorder.spawn("import ctypes\ndef broken(): ctypes.string_at(0)\nbroken()")
    (report,) = recorder.wait_for_exits(1)
    assert report.signal == signal.SIGSEGV
    recorder.host.flush(LIMIT_S)
    assert "Fatal Python error: Segmentation fault" in recorder.texts()
    assert any("in broken" in text for text in recorder.texts())


def test_grandchild_that_holds_the_log_does_not_delay_the_report(recorder: Recorder) -> None:
    recorder.spawn(
        """
        import os, subprocess
        shell = ["sh", "-c", "echo escaped; while read line; do :; done"]
        read, write = os.pipe()
        os.set_inheritable(write, True)
        child = subprocess.Popen(shell, stdin=read, start_new_session=True, close_fds=False)
        print("child", child.pid)
        """
    )
    (report,) = recorder.wait_for_exits(1)
    child = int(recorder.wait_for_lines(1, "child")[0].split()[1])
    assert report.exit_code == 0
    assert is_alive(child)
    recorder.host.close(0)
    assert not is_alive(child)


def test_the_process_group_of_a_dead_process_is_killed(recorder: Recorder) -> None:
    recorder.spawn("import subprocess\nprint(subprocess.Popen(['sleep', '99']).pid)\n" + FOREVER)
    recorder.wait_for_lines(1, "up")
    (child, _) = recorder.texts()
    recorder.host.kill(1)
    recorder.wait_for_exits(1)
    wait_until_gone([int(child)])


def test_a_process_killed_before_its_start_is_reported(recorder: Recorder, modules: Path) -> None:
    latch = modules / "latch"
    os.mkfifo(latch)
    (modules / "waits.py").write_text(f"open({str(latch)!r}).read()")
    recorder.spawn("print('must not run')", count=2, preload=["waits"])
    recorder.spawn("print('must not run')", first=3, preload=["waits"])
    for slot in (1, 2, 3):
        recorder.host.kill(slot)
    recorder.wait_for_exits(1)  # The last one is still queued and is cancelled immediately.
    latch.write_text("open")
    reports = recorder.wait_for_exits(3)
    assert [report.exit_code for report in reports] == [None] * 3
    assert reports[2].reason == "job{n: 0/1} could not start: it was killed before it started"
    assert recorder.texts("must") == []


def test_a_process_can_be_replaced_from_the_exit_callback(recorder: Recorder) -> None:
    def replace(report: ExitReport) -> None:
        if report.incarnation == 0:
            recorder.spawn("print('again')", incarnation=1)

    recorder.react = replace
    recorder.spawn("raise SystemExit(1)")
    assert [report.exit_code for report in recorder.wait_for_exits(2)] == [1, 0]
