"""Modules are imported once for all processes if that is safe."""

import os
from pathlib import Path

import pytest
from host_recorder import FOREVER, LIMIT_S, Recorder, children, command_line, is_alive, parent

from mesh_core._processes.process_spec import ProcSpec


def test_a_preloaded_module_is_imported_once_for_all_processes(
    recorder: Recorder, modules: Path
) -> None:
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
    "threads": (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=[99], daemon=True).start()"
    ),
    "process": "import subprocess\nchild = subprocess.Popen(['sleep', '99'])",
    "sockets": "import socket\npair = socket.socketpair()",
    "loop": "import asyncio\nloop = asyncio.new_event_loop()",
    "crash": "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
    "leaves": "import os\nos._exit(3)",
}


@pytest.mark.parametrize("kind", UNSAFE)
def test_an_unsafe_module_is_denied_without_affecting_other_processes(
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
    # Processes that the import has started are gone, too.
    assert not [pid for pid in children(parent(first)) if "sleep" in command_line(pid)]


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


def test_a_changed_module_is_imported_again(recorder: Recorder, modules: Path) -> None:
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


def test_interpreter_that_starts_with_threads_is_not_forked(
    recorder: Recorder, modules: Path
) -> None:
    (modules / "sitecustomize.py").write_text(UNSAFE["threads"])
    (modules / "good.py").write_text("")
    show = "import sys, threading\nprint(threading.active_count(), 'good' in sys.modules)"
    assert recorder.output(show, preload=["good"]) == ["2 False"]
    assert "site.py" in recorder.host.denied["good"]
