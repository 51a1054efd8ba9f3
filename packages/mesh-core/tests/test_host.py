"""Processes of a host: how they start, what is known of their ends, and that none survives."""

import json
import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from mesh_core._command import BootstrapCommand, default_bootstrap_cmd, take_entry
from mesh_core._host import ExitReport, LocalHost, ProcSpec
from mesh_core._logs import LogLine

LIMIT_S = 30.0

# Stands for `mesh_core._launch`: an entry is a program.
LAUNCH = """
import sys

def main(entry):
    scope = {}
    exec(entry.decode(), scope)
    return scope.get("code", 0)

if __name__ == "__main__":
    from mesh_core import _command, _stdio
    entry = _command.take_entry()
    _stdio.install()
    sys.exit(main(entry))
"""

FOREVER = "import signal\nprint('up', flush=True)\nwhile True: signal.pause()"


class Recorder:
    """A host and all that it has told."""

    def __init__(self, directory: Path, **options: object) -> None:
        self.changed = threading.Condition()
        self.lines: list[LogLine] = []
        self.exits: list[ExitReport] = []
        self.pids: dict[tuple[int, int], int] = {}
        self.job_dir = directory / "job"
        self.job_dir.mkdir()
        (self.job_dir / "socket").touch()
        self.react: Callable[[ExitReport], None] = lambda report: None
        self.host = LocalHost(
            self.job_dir,
            on_exit=self._on_exit,
            on_log=self._on_log,
            on_start=self._on_start,
            launch="launch_for_test",
            **options,  # type: ignore[arg-type]
        )

    def _on_exit(self, report: ExitReport) -> None:
        with self.changed:
            self.exits.append(report)
            self.changed.notify_all()
        self.react(report)

    def _on_start(self, slot: int, incarnation: int, pid: int) -> None:
        with self.changed:
            self.pids[slot, incarnation] = pid
            self.changed.notify_all()

    def _on_log(self, line: LogLine) -> None:
        with self.changed:
            self.lines.append(line)
            self.changed.notify_all()

    def spawn(
        self,
        program: str,
        count: int = 1,
        *,
        first: int = 1,
        incarnation: int = 0,
        preload: Sequence[str] = (),
        command: BootstrapCommand | None = None,
        env: Mapping[str, str | None] | None = None,
        bind: Mapping[str, str] | None = None,
    ) -> None:
        entry = textwrap.dedent(program).encode()
        specs = [
            ProcSpec(
                slot=first + rank,
                incarnation=incarnation,
                name=f"job{{n: {rank}/{count}}}",
                entry=entry,
                command=command,
                env=env or {},
                bind=bind,
            )
            for rank in range(count)
        ]
        self.host.spawn(specs, preload)

    def wait(self, is_true: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(is_true, LIMIT_S), (self.lines, self.exits)

    def pid(self, slot: int, incarnation: int = 0) -> int:
        """Waits for the birth of a process and returns its pid."""
        self.wait(lambda: (slot, incarnation) in self.pids)
        return self.pids[slot, incarnation]

    def wait_for_exits(self, count: int) -> list[ExitReport]:
        self.wait(lambda: len(self.exits) >= count)
        return sorted(self.exits, key=lambda report: (report.slot, report.incarnation))

    def wait_for_lines(self, count: int, prefix: str = "") -> list[str]:
        self.wait(lambda: len(self.texts(prefix)) >= count)
        return self.texts(prefix)

    def texts(self, prefix: str = "") -> list[str]:
        return [line.text for line in self.lines if line.text.startswith(prefix)]

    def output(self, program: str, **options: object) -> list[str]:
        """Runs a program in one process and returns what it printed."""
        before = len(self.exits)
        self.spawn(program, **options)  # type: ignore[arg-type]
        self.wait_for_exits(before + 1)
        assert self.host.flush(LIMIT_S)
        assert self.exits[-1].exit_code == 0, self.exits[-1]
        return [line.text for line in self.lines if line.slot == self.exits[-1].slot]


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on `sys.path` for modules of the test."""
    path = tmp_path / "modules"
    path.mkdir()
    (path / "launch_for_test.py").write_text(LAUNCH)
    monkeypatch.syspath_prepend(str(path))
    source = str(Path(__file__).parent.parent / "src")
    monkeypatch.setenv("PYTHONPATH", f"{source}:{path}")
    return path


@pytest.fixture
def recorder(tmp_path: Path, modules: Path) -> Iterator[Recorder]:
    recorder = Recorder(tmp_path, log_dir=tmp_path / "logs", tail_lines=5)
    yield recorder
    recorder.host.close(0)
    assert not recorder.job_dir.exists()


def wait_until_gone(pids: Sequence[int], limit_s: float = LIMIT_S) -> None:
    """Waits for the death of processes that need not be children."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(limit_s * 1000), f"process {pid} is still alive"
        os.close(handle)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if parent(int(path.name)) == pid:
                found.append(int(path.name))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


# Starting.


def test_process_runs_its_entry_and_its_end_is_reported(recorder: Recorder) -> None:
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
    gate = modules / "gate"
    os.mkfifo(gate)
    (modules / "waits.py").write_text(f"open({str(gate)!r}).read()")
    recorder.spawn("print('ran')", preload=["waits"])
    assert recorder.host.pid(1) is None
    gate.write_text("open")
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


def test_surroundings_are_those_of_the_controller_at_the_time(
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


def test_environment_is_changed_as_asked(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_TEST_GONE", "here")
    show = "import os\nprint(os.environ.get('MESH_TEST_NEW'), os.environ.get('MESH_TEST_GONE'))"
    printed = recorder.output(show, env={"MESH_TEST_NEW": "new", "MESH_TEST_GONE": None})
    assert printed == ["new None"]


def test_environment_that_only_a_fresh_interpreter_obeys_gets_one(recorder: Recorder) -> None:
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
def test_wrong_binding_is_refused_before_anything_starts(
    recorder: Recorder, bind: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        recorder.spawn("", bind=bind)
    assert recorder.host.pid(1) is None
    recorder.output("")


def test_slot_that_is_taken_is_refused(recorder: Recorder) -> None:
    recorder.spawn(FOREVER)
    with pytest.raises(ValueError, match=r"slots are taken: \[\(1, 0\)\]"):
        recorder.spawn(FOREVER)
    recorder.spawn(FOREVER, incarnation=1)
    recorder.wait_for_lines(2, "up")


def test_lack_of_descriptors_starts_nothing(recorder: Recorder) -> None:
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


# Preloading.


def test_preloaded_module_is_imported_once_for_all(recorder: Recorder, modules: Path) -> None:
    (modules / "once.py").write_text("import os\nprint('imported by', os.getpid())\nspot = [0]")
    show = "import sys\nprint('has', 'once' in sys.modules)\nimport once"
    recorder.spawn(show, count=3, preload=["once"])
    recorder.wait_for_exits(3)
    recorder.spawn(show, count=2, preload=["once"])
    recorder.wait_for_exits(5)
    recorder.host.flush(LIMIT_S)
    assert recorder.texts("has") == ["has True"] * 5
    assert len(recorder.texts("imported by")) == 1
    assert recorder.host.denied == {}


UNSAFE = {
    "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()",
    "process": "import subprocess\nchild = subprocess.Popen(['sleep', '99'])",
    "sockets": "import socket\npair = socket.socketpair()",
    "loop": "import asyncio\nloop = asyncio.new_event_loop()",
    "crash": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "leaves": "import os\nos._exit(3)",
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_unsafe_module_is_left_to_the_processes_and_harms_nobody(
    recorder: Recorder, modules: Path, kind: str
) -> None:
    (modules / "good.py").write_text("")
    (modules / "later.py").write_text("")
    (modules / f"bad_{kind}.py").write_text(UNSAFE[kind])
    show = "import sys\nprint(*(n in sys.modules for n in ('good', bad, 'later')))\n"
    show = f"bad = 'bad_{kind}'\n{show}" + FOREVER
    recorder.spawn(show, preload=["good"])
    recorder.wait_for_lines(1, "up")
    first = recorder.pid(1)
    recorder.spawn(show, first=2, preload=["good", f"bad_{kind}", "later"])
    recorder.wait_for_lines(2, "up")
    assert recorder.texts("True") == ["True False False", "True False True"]
    assert list(recorder.host.denied) == [f"bad_{kind}"]
    assert is_alive(first)
    # What the import has started is gone with it.
    assert not [pid for pid in children(parent(first)) if "sleep" in command_line(pid)]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_module_that_cannot_be_imported_is_ignored(recorder: Recorder, modules: Path) -> None:
    (modules / "broken.py").write_text("import random\nnonsense")
    (modules / "good.py").write_text("")
    show = "import sys\nprint('good' in sys.modules, 'broken' in sys.modules)"
    assert recorder.output(show, preload=["broken", "missing", "good"]) == ["True False"]
    assert recorder.host.denied == {}


def test_denied_module_is_not_imported(tmp_path: Path, modules: Path) -> None:
    (modules / "unwanted.py").write_text("print('imported')")
    recorder = Recorder(tmp_path, deny_preload=["unwanted"])
    show = "import sys\nprint('unwanted' in sys.modules)"
    assert recorder.output(show, preload=["unwanted"]) == ["False"]
    recorder.host.close(0)
    assert recorder.texts() == ["False"]


def test_changed_module_is_imported_anew(recorder: Recorder, modules: Path) -> None:
    source = modules / "edited.py"
    source.write_text("value = 'old'")
    show = "import edited\nprint(edited.value)"
    assert recorder.output(show, preload=["edited"]) == ["old"]
    source.write_text("value = 'newer'")
    assert recorder.output(show, preload=["edited"])[-1] == "newer"


def test_module_sees_the_environment_of_its_processes(recorder: Recorder, modules: Path) -> None:
    (modules / "reads.py").write_text("import os\nvalue = os.environ.get('MESH_TEST')")
    show = "import reads\nprint(reads.value)"
    for value in ("a", "b", None):
        printed = recorder.output(show, preload=["reads"], env={"MESH_TEST": value})
        assert printed[-1] == str(value)
    specs = [
        ProcSpec(7 + rank, 0, f"job{{n: {rank}/2}}", show.encode(), env={"MESH_TEST": f"r{rank}"})
        for rank in range(2)
    ]
    recorder.host.spawn(specs, ["reads"])
    recorder.wait_for_exits(5)
    recorder.host.flush(LIMIT_S)
    assert sorted(recorder.texts("r")) == ["r0", "r1"]


def test_numpy_is_preloaded_and_multiplies_with_all_threads(recorder: Recorder) -> None:
    pytest.importorskip("numpy")
    printed = recorder.output(
        """
        import os, sys
        print("numpy" in sys.modules, len(os.listdir("/proc/self/task")))
        import numpy
        matrix = numpy.ones((700, 700))
        assert (matrix @ matrix)[0, 0] == 700
        print(len(os.listdir("/proc/self/task")))
        print(numpy.random.random())
        """,
        preload=["numpy"],
    )
    assert printed[:2] == ["True 1", str(len(os.sched_getaffinity(0)))]
    again = recorder.output("import numpy\nprint(numpy.random.random())", preload=["numpy"])
    assert again[-1] != printed[2]
    assert recorder.host.denied == {}


# Fresh interpreters.


def fresh() -> BootstrapCommand:
    return default_bootstrap_cmd("launch_for_test")


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


def test_program_that_does_not_exist_is_named(recorder: Recorder) -> None:
    recorder.spawn("", command=BootstrapCommand("/no/such/python"))
    (report,) = recorder.wait_for_exits(1)
    assert report.reason == (
        f"job{{n: 0/1}} (pid {report.pid}) could not start: "
        "cannot execute '/no/such/python': No such file or directory"
    )
    assert report.exit_code == 127


def test_command_can_be_pickled_and_changed() -> None:
    import pickle

    command = default_bootstrap_cmd().with_env({"A": "1", "B": None}).with_env({"A": "2"})
    assert command.program == sys.executable
    assert command.env == {"A": "2", "B": None}
    assert pickle.loads(pickle.dumps(command)) == command
    assert take_entry({}) is None


# Output.


def test_streams_are_told_apart_and_keep_their_order(recorder: Recorder) -> None:
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


def test_flood_is_complete_and_in_order(recorder: Recorder) -> None:
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


# Ends.


@pytest.mark.parametrize(
    ("program", "code"),
    [("raise SystemExit(7)", 7), ("code = 3", 3), ("raise SystemExit", 0), ("1 / 0", 1)],
)
def test_exit_status_is_reported(recorder: Recorder, program: str, code: int) -> None:
    recorder.spawn(program)
    (report,) = recorder.wait_for_exits(1)
    assert report.exit_code == code
    assert report.reason.endswith(f"exited with status {code}")


def test_traceback_is_the_tail_of_the_log(recorder: Recorder) -> None:
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


def test_kill_sends_the_signal_asked_for(recorder: Recorder) -> None:
    recorder.spawn(FOREVER, count=2)
    recorder.wait_for_lines(2, "up")
    recorder.host.kill(1, signal.SIGTERM)
    recorder.host.kill(2)
    reports = recorder.wait_for_exits(2)
    assert [report.signal for report in reports] == [signal.SIGTERM, signal.SIGKILL]
    assert all(report.reason.endswith(", as asked") for report in reports)
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


def test_group_of_a_dead_process_dies_with_it(recorder: Recorder) -> None:
    recorder.spawn("import subprocess\nprint(subprocess.Popen(['sleep', '99']).pid)\n" + FOREVER)
    recorder.wait_for_lines(1, "up")
    (child, _) = recorder.texts()
    recorder.host.kill(1)
    recorder.wait_for_exits(1)
    wait_until_gone([int(child)])


def test_process_killed_before_its_birth_is_reported(recorder: Recorder, modules: Path) -> None:
    gate = modules / "gate"
    os.mkfifo(gate)
    (modules / "waits.py").write_text(f"open({str(gate)!r}).read()")
    recorder.spawn("print('must not run')", count=2, preload=["waits"])
    recorder.spawn("print('must not run')", first=3, preload=["waits"])
    for slot in (1, 2, 3):
        recorder.host.kill(slot)
    recorder.wait_for_exits(1)  # The last waits behind the others and can be struck off at once.
    gate.write_text("open")
    reports = recorder.wait_for_exits(3)
    assert [report.exit_code for report in reports] == [None] * 3
    assert reports[2].reason == "job{n: 0/1} could not start: it was killed before it started"
    assert recorder.texts("must") == []


def test_process_may_be_replaced_from_the_callback(recorder: Recorder) -> None:
    def replace(report: ExitReport) -> None:
        if report.incarnation == 0:
            recorder.spawn("print('again')", incarnation=1)

    recorder.react = replace
    recorder.spawn("raise SystemExit(1)")
    assert [report.exit_code for report in recorder.wait_for_exits(2)] == [1, 0]


# Closing.


def test_close_lets_processes_finish_and_then_kills(recorder: Recorder) -> None:
    leave = "def leave(*_): print('leaving'); raise SystemExit(5)\n"
    recorder.spawn("import signal\n" + leave + "signal.signal(signal.SIGTERM, leave)\n" + FOREVER)
    stubborn = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOREVER
    recorder.spawn(stubborn, first=2)
    recorder.wait_for_lines(2, "up")
    recorder.host.close(0.2)
    polite, killed = recorder.wait_for_exits(2)
    assert (polite.exit_code, polite.log_tail) == (5, ("up", "leaving"))
    assert killed.signal == signal.SIGKILL
    assert killed.reason.endswith("was killed by SIGKILL as the host was closed")
    assert not recorder.job_dir.exists()


def test_close_may_come_again_and_from_any_thread(recorder: Recorder) -> None:
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


def test_host_that_started_nothing_can_be_closed(recorder: Recorder) -> None:
    recorder.host.close(0)
    recorder.host.kill(1)
    assert recorder.host.flush(LIMIT_S)


def test_nothing_is_left_open(tmp_path: Path, modules: Path) -> None:
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    recorder = Recorder(tmp_path)
    recorder.spawn(FOREVER, count=5, preload=["json"])
    recorder.wait_for_lines(5, "up")
    recorder.host.close(0)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


# Deaths of those who hold the processes.

CONTROLLER = """
import os, signal, sys, threading
from pathlib import Path
from mesh_core._host import LocalHost, ProcSpec

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


def controlled(job: Path, end: str, *preload: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Starts a controller in a process of its own; returns it and what descends from it."""
    job.mkdir()
    (job / "socket").touch()
    controller = subprocess.Popen(
        [sys.executable, "-c", CONTROLLER, str(job), end, *preload],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert controller.stdout is not None
    pids = [int(pid) for pid in controller.stdout.readline().split()]
    assert len(pids) == 8
    return controller, pids


@pytest.mark.parametrize("preload", [(), ("json",)])
@pytest.mark.parametrize(
    "end", ["exit", "exception", "exec", "fork", signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
)
def test_nothing_survives_the_controller(
    tmp_path: Path, modules: Path, end: str | signal.Signals, preload: tuple[str, ...]
) -> None:
    controller, pids = controlled(tmp_path / "job", str(end), *preload)
    pids += children(pids[3])  # The templates of the warden, unless it has ended already.
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


def test_nothing_survives_a_frozen_controller_that_is_killed(tmp_path: Path, modules: Path) -> None:
    controller, pids = controlled(tmp_path / "job", "pause")
    controller.send_signal(signal.SIGSTOP)
    os.kill(pids[0], signal.SIGKILL)
    controller.kill()
    wait_until_gone(pids)
    controller.wait()
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_warden_is_named_and_survived(recorder: Recorder, sig: int) -> None:
    program = "import subprocess\nprint('child', subprocess.Popen(['sleep', '99']).pid)\n"
    recorder.spawn(program + FOREVER, count=3)
    recorder.wait_for_lines(3, "up")
    pids = [recorder.pid(slot) for slot in (1, 2, 3)]
    grandchildren = [int(text.split()[1]) for text in recorder.texts("child")]
    warden = parent(pids[0])
    os.kill(warden, sig)
    reports = recorder.wait_for_exits(3)
    for pid, report in zip(pids, reports, strict=True):
        assert (report.pid, report.signal) == (pid, signal.SIGKILL)
        assert report.log_tail[-1] == "up"
        assert "its warden, the parent of all processes of the host, was killed by SIG" in (
            report.reason
        )
    wait_until_gone([*pids, *grandchildren])
    assert recorder.output("print('risen')", first=9) == ["risen"]


def test_death_of_a_template_harms_no_process(recorder: Recorder) -> None:
    recorder.spawn(FOREVER, preload=["json"])
    recorder.wait_for_lines(1, "up")
    pid = recorder.pid(1)
    templates = [child for child in children(parent(pid)) if child != pid]
    for template in templates:
        os.kill(template, signal.SIGKILL)
    wait_until_gone(templates)
    assert len(templates) == 2
    assert recorder.output("print('risen')", first=2, preload=["json"]) == ["risen"]
    assert is_alive(pid)


def test_deaths_in_random_order_leave_nothing(tmp_path: Path, modules: Path) -> None:
    dice = random.Random(7)
    for number in range(8):
        controller, pids = controlled(tmp_path / f"job{number}", "pause", "json")
        warden = pids[3]
        everyone = {*pids, *children(warden)}
        victims = [controller.pid, *dice.sample(sorted(everyone - {warden}), 3)]
        dice.shuffle(victims)
        for pid in victims:
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
