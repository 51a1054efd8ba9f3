"""Features of Python processes that also work in actors: children, signals, the prompt."""

from __future__ import annotations

import signal
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from whole_program import run

from mesh_core import Actor, endpoint, this_host

LIMIT_S = 60.0

SCRIPT = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

FACTOR = 3

class Point:
    def __init__(self, x):
        self.x = x

class Child(multiprocessing.get_context(HOW).Process):
    def __init__(self, queue):
        super().__init__()
        self.queue = queue
    def run(self):
        self.queue.put(Point(scaled(4)))

def scaled(x):
    return x * FACTOR

class User(Actor):
    @endpoint
    def pool(self):
        with multiprocessing.get_context(HOW).Pool(2) as pool:
            return pool.map(scaled, range(4)), pool.map(lambda x: x + FACTOR, range(2))
    @endpoint
    def executor(self):
        context = multiprocessing.get_context(HOW)
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            points = list(pool.map(Point, range(3)))
        return [type(point) is Point and point.x for point in points]
    @endpoint
    def process(self):
        queue = multiprocessing.get_context(HOW).Queue()
        child = Child(queue)
        child.start()
        point = queue.get(timeout=30)
        child.join()
        return type(point) is Point, point.x

user = this_host().spawn_procs().spawn("user", User)
print(user.pool.call_one().get(60))
print(user.executor.call_one().get(60))
print(user.process.call_one().get(60))
"""


@pytest.mark.parametrize("how", ["fork", "spawn", "forkserver"])
def test_child_processes_run_functions_and_classes_of_the_script(how: str) -> None:
    # multiprocessing creates sockets below the folder, whose paths have at most 108 characters.
    with TemporaryDirectory() as folder:
        ended = run(Path(folder), f"HOW = {how!r}\n{SCRIPT}")
    assert ended.status == 0, ended
    assert ended.out.splitlines() == [
        "([0, 3, 6, 9], [3, 4])",
        "[0, 1, 2]",
        "(True, 12)",
    ]


CELL = """
import linecache

def define(cell, name):
    lines = cell.splitlines(keepends=True)
    linecache.cache[name] = (len(cell), None, lines, name)
    exec(compile(cell, name, "exec"), globals())

define('''
class Cell(Actor):
    @endpoint
    def divide(self, by):
        # as in a notebook
        return 1 / by
''', "/tmp/ipykernel_1/2.py")
this_host().spawn_procs().spawn("cell", Cell).divide.call_one(0).get(60)
"""


def test_the_traceback_of_a_notebook_cell_contains_its_source_lines(tmp_path: Path) -> None:
    ended = run(tmp_path, CELL)
    assert ended.status == 1
    assert 'File "/tmp/ipykernel_1/2.py", line 6, in divide\n' in ended.err
    assert "    return 1 / by\n" in ended.err


class Handler(Actor):
    @endpoint
    def handle(self) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    @endpoint
    def handler(self) -> str:
        return str(signal.getsignal(signal.SIGUSR1))


def test_the_error_says_where_to_set_a_signal_handler() -> None:
    procs = this_host().spawn_procs()
    handler = procs.spawn("handler", Handler)
    with pytest.raises(ValueError, match="signal only works in main thread") as caught:
        handler.handle.call_one().get(LIMIT_S)
    assert "bootstrap=... of spawn_procs" in caught.value.__notes__[0]
    procs.stop().get(LIMIT_S)


def ignore() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)


def test_bootstrap_may_set_signal_handlers() -> None:
    procs = this_host().spawn_procs(bootstrap=ignore)
    found = procs.spawn("handler", Handler).handler.call_one().get(LIMIT_S)
    assert found == str(signal.SIG_IGN)
    procs.stop().get(LIMIT_S)
