"""No process survives the processes that hold it, whatever the order of their deaths."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from host_recorder import (
    FOREVER,
    LIMIT_S,
    Recorder,
    children,
    is_alive,
    parent,
    wait_until_gone,
)


def test_close_lets_processes_finish_and_then_kills_them(recorder: Recorder) -> None:
    leave = "def leave(*_): print('leaving'); raise SystemExit(5)\n"
    recorder.spawn("import signal\n" + leave + "signal.signal(signal.SIGTERM, leave)\n" + FOREVER)
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER
    recorder.spawn(stubborn, first=2)
    recorder.wait_for_lines(2, "up")
    recorder.host.close(0.2)
    polite, killed = recorder.wait_for_exits(2)
    assert (polite.exit_code, polite.log_tail) == (5, ("up", "leaving"))
    assert killed.signal == signal.SIGKILL
    assert killed.reason.endswith("was killed by SIGKILL when the host was closed")
    assert not recorder.job_dir.exists()


def test_close_can_be_called_repeatedly_and_from_any_thread(recorder: Recorder) -> None:
    recorder.react = lambda report: recorder.host.close(0)
    recorder.spawn(FOREVER, count=3)
    recorder.wait_for_lines(3, "up")
    threads = [threading.Thread(target=recorder.host.close, args=(0,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    recorder.host.close(0)
    assert len(recorder.exits) == 3
    with pytest.raises(RuntimeError, match="the host is closed"):
        recorder.spawn("")


def test_an_unused_host_can_be_closed(recorder: Recorder) -> None:
    recorder.host.close(0)
    recorder.host.kill(1)
    assert recorder.host.flush(LIMIT_S)


def test_close_leaks_no_descriptors_or_threads(tmp_path: Path, modules: Path) -> None:
    descriptors, threads = len(os.listdir("/proc/self/fd")), set(threading.enumerate())
    recorder = Recorder(tmp_path)
    recorder.spawn(FOREVER, count=5, preload=["json"])
    recorder.wait_for_lines(5, "up")
    recorder.host.close(0)
    # Resources of an earlier test may be released at the same time.
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert set(threading.enumerate()) <= threads


# The tests below kill the processes that hold others.

CONTROLLER = """
import os, signal, sys, threading
from pathlib import Path
from mesh_core._processes.local_host import LocalHost
from mesh_core._processes.process_spec import ProcSpec

entry = b'''
import os, signal, subprocess
own = subprocess.Popen(["sleep", "99"]).pid
escaped = subprocess.Popen(["sleep", "99"], start_new_session=True).pid
print("pids", os.getpid(), own, escaped, os.getppid(), flush=True)
while True: signal.pause()
'''
ready = threading.Semaphore(0)
pids = []

def on_log(line):
    assert line.text.startswith("pids"), line
    pids.extend(map(int, line.text.split()[1:]))
    ready.release()

host = LocalHost(Path(sys.argv[1]), on_exit=print, on_log=on_log, launch="launch_for_test")
host.spawn([ProcSpec(slot, 0, "job", entry) for slot in (1, 2)], sys.argv[3:])
for _ in range(2):
    ready.acquire()
end = sys.argv[2]
if end == "fork" and os.fork() == 0:
    signal.pause()
print(*pids, flush=True)
if end == "exit":
    sys.exit()
if end == "exception":
    raise KeyError
if end == "exec":
    os.execvp("true", ["true"])
while True:
    signal.pause()
"""


@contextmanager
def controlled(
    job: Path, end: str, *preload: str
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Run a controller in a separate process; yield it with the pids of its descendants."""
    job.mkdir()
    (job / "socket").touch()
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(job), end, *preload],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with controller:
        assert controller.stdout is not None
        pids = [int(pid) for pid in controller.stdout.readline().split()]
        assert len(pids) == 8
        yield controller, pids


@pytest.mark.parametrize("preload", [(), ("json",)])
@pytest.mark.parametrize(
    "end", ["exit", "exception", "exec", "fork", signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
)
def test_no_process_survives_the_controller(
    tmp_path: Path, modules: Path, end: str | signal.Signals, preload: tuple[str, ...]
) -> None:
    with controlled(tmp_path / "job", str(end), *preload) as (controller, pids):
        pids += children(pids[3])  # The templates of the supervisor, if it is still alive.
        stray = [pid for pid in children(controller.pid) if pid not in pids]
        if end == "fork":
            controller.kill()
        elif isinstance(end, signal.Signals):
            controller.send_signal(end)
        controller.wait(LIMIT_S)
        wait_until_gone(pids)
        assert not (tmp_path / "job").exists()
        for pid in stray:
            os.kill(pid, signal.SIGKILL)


def test_no_process_survives_a_frozen_controller_that_is_killed(
    tmp_path: Path, modules: Path
) -> None:
    with controlled(tmp_path / "job", "pause") as (controller, pids):
        controller.send_signal(signal.SIGSTOP)
        os.kill(pids[0], signal.SIGKILL)
        controller.kill()
        wait_until_gone(pids)
        controller.wait()
        assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_the_host_reports_and_survives_the_death_of_its_supervisor(
    recorder: Recorder, sig: int
) -> None:
    program = "import subprocess\nprint('child', subprocess.Popen(['sleep', '99']).pid)\n"
    recorder.spawn(program + FOREVER, count=3)
    recorder.wait_for_lines(3, "up")
    pids = [recorder.pid(slot) for slot in (1, 2, 3)]
    grandchildren = [int(text.split()[1]) for text in recorder.texts("child")]
    supervisor = parent(pids[0])
    os.kill(supervisor, sig)
    reports = recorder.wait_for_exits(3)
    for pid, report in zip(pids, reports, strict=True):
        assert (report.pid, report.signal) == (pid, signal.SIGKILL)
        assert report.log_tail[-1] == "up"
        why = "its process supervisor, the parent of all processes of the host, was killed by SIG"
        assert why in report.reason
    wait_until_gone([*pids, *grandchildren])
    assert recorder.output("print('risen')", first=9) == ["risen"]


def test_the_death_of_a_template_process_affects_no_other_process(
    recorder: Recorder, modules: Path
) -> None:
    (modules / "good.py").write_text("")
    recorder.spawn(FOREVER, preload=["good"])
    recorder.wait_for_lines(1, "up")
    pid = recorder.pid(1)
    templates = [child for child in children(parent(pid)) if child != pid]
    for template in templates:
        os.kill(template, signal.SIGKILL)
    wait_until_gone(templates)
    assert len(templates) == 2
    assert recorder.output("print('risen')", first=2, preload=["good"]) == ["risen"]
    assert is_alive(pid)


def test_deaths_in_random_order_leave_no_processes(tmp_path: Path, modules: Path) -> None:
    dice = random.Random(7)
    for number in range(8):
        with controlled(tmp_path / f"job{number}", "pause", "json") as (controller, pids):
            supervisor = pids[3]
            everyone = {*pids, *children(supervisor)}
            victims = [controller.pid, *dice.sample(sorted(everyone - {supervisor}), 3)]
            dice.shuffle(victims)
            for pid in victims:
                # A previous death may already have led to its exit.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            controller.wait(LIMIT_S)
            wait_until_gone(sorted(everyone))
            assert not (tmp_path / f"job{number}").exists()


def test_fork_of_the_controller_cannot_close_its_host(recorder: Recorder) -> None:
    recorder.spawn(FOREVER)
    recorder.wait_for_lines(1, "up")
    pid = os.fork()
    if pid == 0:
        recorder.host.close(0)
        os._exit(0)
    os.waitpid(pid, 0)
    process = recorder.pid(1)
    assert is_alive(process)
    assert json.dumps(recorder.exits) == "[]"
