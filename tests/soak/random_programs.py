"""Small programs with random combinations of startup, work and exit."""

from __future__ import annotations

import random
import signal
import textwrap
from typing import NamedTuple

_PRELUDE = """
import asyncio, ctypes, os, signal, sys, threading, time
from mesh_core import *

class Worker(Actor):
    def __init__(self):
        self.count = 0
    @endpoint
    def add(self):
        self.count += 1
        return self.count
    @endpoint
    def pid(self):
        return os.getpid()
    @endpoint
    def sleep(self, seconds):
        time.sleep(seconds)
        return seconds
    @endpoint
    def spin(self):
        while True:
            pass
    @endpoint
    def fail(self):
        raise ValueError("asked to")
    @endpoint
    def leave(self, status):
        os._exit(status)
    @endpoint
    def crash(self):
        ctypes.string_at(0)
    @endpoint
    def exit(self):
        sys.exit(5)
    @endpoint
    def unpicklable(self):
        return threading.Lock()
    @endpoint
    def huge(self):
        raise ValueError("x" * 10_000_000)
    @endpoint
    def say(self, count):
        for n in range(count):
            print("line", n)
    @endpoint
    def echo(self, content):
        return content
    @endpoint
    def spawn(self, procs):
        child = procs.spawn("child", Worker)
        child.add.call().get()
        return child

class AsyncWorker(Worker):
    @endpoint
    async def add(self):
        await asyncio.sleep(0)
        self.count += 1
        return self.count

def expect(kind, call):
    try:
        call.get()
    except kind:
        return
    raise SystemExit(f"no {kind.__name__} was raised")

def kill(mesh):
    os.kill(mesh.pid.call_one().get(), signal.SIGKILL)

def ready():
    print("ready", flush=True)
"""

_START = """
procs = this_host().spawn_procs({"n": SIZE})
mesh = procs.spawn("worker", CLASS)
one = mesh.slice(n=SIZE - 1)
"""

_STARTS = {
    "procs": _START,
    "ready first": _START + "procs.initialized.get(); mesh.initialized.get()\n",
    "twice": _START + "other = this_host().spawn_procs().spawn('other', Worker)\n",
    "bootstrap": _START.replace('"n": SIZE}', '"n": SIZE}, bootstrap=lambda: None'),
    "after a shutdown": (
        "this_host().spawn_procs().spawn('worker', Worker).add.call().get()\n"
        "shutdown_context().get()\n" + _START
    ),
    "in a thread": (
        "def start():\n    global procs, mesh, one\n"
        + textwrap.indent(_START, "    ")
        + "thread = threading.Thread(target=start); thread.start(); thread.join()\n"
    ),
}

_WORKS = {
    "nothing": "",
    "calls": "for _ in range(20): mesh.add.call().get()\n",
    "pipelined": "calls = [mesh.add.call() for _ in range(50)]\n[call.get() for call in calls]\n",
    "broadcasts": "for _ in range(50): mesh.add.broadcast()\n",
    "asyncio": (
        "async def work():\n"
        "    await asyncio.gather(*[mesh.add.call() for _ in range(10)])\n"
        "    async for _ in mesh.add.stream(): pass\n"
        "asyncio.run(work())\n"
    ),
    "threads": (
        "threads = [threading.Thread(target=lambda: mesh.add.call().get()) for _ in range(4)]\n"
        "[thread.start() for thread in threads]\n[thread.join() for thread in threads]\n"
    ),
    "nested": "one.spawn.call_one(procs).get()\n",
    "bytes": "assert one.echo.call_one(bytes(3_000_000)).get() == bytes(3_000_000)\n",
    "log": "mesh.say.call(50).get()\n",
    "exception": "expect(ValueError, one.fail.call_one())\n",
    "10 MB exception": "expect(ValueError, one.huge.call_one())\n",
    "unpicklable result": "expect(TypeError, one.unpicklable.call_one())\n",
    "sys.exit in an endpoint": "expect(ActorError, one.exit.call_one())\n",
    "time-out": "expect(TimeoutError, one.spin.options(timeout=0.1).call_one())\n",
    "SIGKILL of a worker": "kill(one)\nexpect(ProcDied, mesh.add.call())\n",
    "os._exit in an endpoint": "expect(ProcDied, one.leave.call_one(3))\n",
    "segfault": "expect(ProcDied, one.crash.call_one())\n",
    "replace": (
        "kill(one)\nexpect(ProcDied, mesh.add.call())\nprocs.replace(-1)\nmesh.add.call().get()\n"
    ),
    "restart": (
        "kept = procs.spawn('kept', Worker, restart='permanent')\n"
        "last = kept.slice(n=SIZE - 1)\n"
        "kill(last)\n"
        "while last.add.call_one().exception() is not None: time.sleep(0.01)\n"
    ),
    "failed actor": "one.fail.broadcast()\nexpect(ActorFailed, mesh.add.call())\n",
    "stop": "mesh.stop().get()\nmesh = procs.spawn('again', CLASS)\none = mesh.slice(n=SIZE - 1)\n",
    "fork": (
        "pid = os.fork()\nif pid == 0: os._exit(0)\n"
        "os.waitpid(pid, 0)\nmesh.add.call().exception()\n"
    ),
}


class _End(NamedTuple):
    code: str
    status: int = 0
    send: int | None = None


_ENDS = {
    "the last line": _End(""),
    "procs.stop": _End("procs.stop().get()"),
    "shutdown": _End("shutdown_context().get()"),
    "sys.exit": _End("sys.exit(7)", 7),
    "an exception": _End("raise RuntimeError('the end')", 1),
    "an exception in asyncio": _End(
        "async def end():\n    raise RuntimeError('the end')\nasyncio.run(end())", 1
    ),
    "os._exit": _End("os._exit(9)", 9),
    "queued work": _End("[mesh.sleep.broadcast(0.01) for _ in range(5)]"),
    "a pending call": _End("call = mesh.sleep.call(0.2)"),
    "an exception next to a hung endpoint": _End(
        "call = mesh.slice(n=0).spin.call()\ntime.sleep(0.05)\nraise RuntimeError('the end')", 1
    ),
    "a hung endpoint": _End("configure(stop_grace_s=0.3)\nmesh.slice(n=0).spin.broadcast()"),
    "a failure that nobody takes": _End(
        "configure(failure_grace_s=0.2)\nthis_host().spawn_procs().spawn('lost', Worker)"
        ".fail.broadcast()\ntime.sleep(60)",
        1,
    ),
    "a death that nobody takes": _End(
        "this_host().spawn_procs().spawn('lost', Worker).crash.broadcast()\ntime.sleep(60)", 1
    ),
    "a failure at the very end": _End(
        "this_host().spawn_procs().spawn('lost', Worker).fail.broadcast()", 1
    ),
    "Ctrl-C in get": _End("call = mesh.sleep.call(60)\nready()\ncall.get()", -2, signal.SIGINT),
    "Ctrl-C in a sleep": _End("ready()\ntime.sleep(60)", -2, signal.SIGINT),
    # Short waits: a signal that arrives immediately before a long wait is handled by a Python
    # program only after that wait. `ready()` is inside: a Ctrl-C that arrives while `asyncio.run`
    # installs its handler ends any Python program with CancelledError, as if it had cancelled
    # itself.
    "Ctrl-C in asyncio": _End(
        "async def end():\n    ready()\n    while True:\n"
        "        await asyncio.wait([asyncio.ensure_future(asyncio.Event().wait())], timeout=0.1)\n"
        "asyncio.run(end())",
        -2,
        signal.SIGINT,
    ),
    "SIGTERM": _End("call = mesh.sleep.call(60)\nready()\ncall.get()", -15, signal.SIGTERM),
    "SIGKILL": _End("call = mesh.sleep.call(60)\nready()\ncall.get()", -9, signal.SIGKILL),
    "SIGKILL while it spawns": _End(
        "ready()\nwhile True:\n    this_host().spawn_procs({'n': 2}).spawn('more', Worker)",
        -9,
        signal.SIGKILL,
    ),
    "a segfault": _End("ctypes.string_at(0)", -11),
}


class Program(NamedTuple):
    """A program and its expected end."""

    name: str
    code: str
    status: int
    """Its exit status, or the negative number of the signal that ends it."""
    send: int | None
    """A signal that is sent to it once it prints "ready"."""
    end: str
    """The name of its kind of end in the table."""


def program(number: int, seed: int) -> Program:
    """Compose a program; the same numbers give the same program."""
    chance = random.Random(f"{seed}/{number}")
    start = chance.choice(sorted(_STARTS))
    works = [chance.choice(sorted(_WORKS)) for _ in range(chance.choice((1, 1, 2)))]
    # Every kind of end occurs, whatever the number of programs.
    names = sorted(_ENDS)
    name = names[number % len(names)]
    end = _ENDS[name]
    body = _STARTS[start]
    lost = False
    for work in works:
        # After the loss of a rank, further work needs new ranks.
        body += _START if lost else ""
        body += _WORKS[work]
        lost = work in _LOSING
    body += _START if lost else ""
    body += end.code + "\n"
    size = chance.choice((1, 2, 2, 3))
    kind = chance.choice(("Worker", "AsyncWorker"))
    code = _PRELUDE + body.replace("SIZE", str(size)).replace("CLASS", kind)
    title = f"{number}: {start}, {', '.join(works)}, {name} ({size} x {kind})"
    return Program(title, code, end.status, end.send, name)


_LOSING = frozenset(
    {"SIGKILL of a worker", "os._exit in an endpoint", "segfault", "failed actor", "restart"}
)
