"""A program for `mesh top` that executes commands from its standard input.

Each line consists of a word and an argument; the program replies to each with a line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from workers import workers

from mesh_core import (
    Actor,
    MeshFailure,
    MeshStopped,
    attach_to_workers,
    endpoint,
    shutdown_context,
    span,
    this_host,
)
from mesh_core.testing import kill_proc
from mesh_telemetry import Telemetry, TelemetryConfig

LIMIT_S = 60.0


class Trainer(Actor):
    """Prints, fails and waits on request."""

    @endpoint
    def say(self, text: str) -> None:
        with span("saying", {"text": text}):
            print(text, flush=True)

    @endpoint
    def fail(self, text: str) -> None:
        try:
            raise OSError("the disk is gone")
        except OSError as error:
            raise ValueError(text) from error

    @endpoint
    def ask(self, other: Trainer, me: Trainer) -> str:
        return other.answer.call_one(me).get()

    @endpoint
    def answer(self, asker: Trainer) -> str:
        return asker.name.call_one().get()

    @endpoint
    def name(self) -> str:
        return "a trainer"


class Boss(Actor):
    """Owns trainers, and continues if one fails."""

    def __supervise__(self, failure: MeshFailure) -> bool:
        return True

    @endpoint
    def hire(self) -> None:
        self.procs = this_host().spawn_procs({"n": 2}, name="team")
        self.trainers = self.procs.spawn("trainers", Trainer)
        self.trainers.say.call("hello").get(LIMIT_S)

    @endpoint
    def say(self, text: str) -> str:
        try:
            # The other trainer may have failed.
            self.trainers.slice(n=1).say.call_one(text).get(LIMIT_S)
        except MeshStopped as error:
            return f"stopped: {error.reason}"
        return "said"

    @endpoint
    def fail(self, text: str) -> str:
        self.trainers.slice(n=0).fail.broadcast(text)
        return "failed"

    @endpoint
    def lock(self, _: str) -> str:
        """Make two actors wait for each other; deadlock detection is disabled."""
        self.pair = this_host().spawn_procs({"n": 2}, name="pair")
        left: Any = self.pair.slice(n=0).spawn("left", Trainer)
        right: Any = self.pair.slice(n=1).spawn("right", Trainer)
        left.name.call_one().get(LIMIT_S)
        right.name.call_one().get(LIMIT_S)
        self.locked = left.ask.call_one(right, left)
        return "locked"

    @endpoint
    def kill(self, rank: str) -> str:
        kill_proc(self.procs, int(rank))
        return "killed"

    @endpoint
    def spawn(self, count: str) -> str:
        """Spawn meshes with two actors each, `count` actors in total."""
        self.crowd = this_host().spawn_procs({"n": 2}, name="crowd")
        meshes = [self.crowd.spawn(f"member{at:04}", Trainer) for at in range(int(count) // 2)]
        meshes[-1].name.call().get(LIMIT_S)
        return "spawned"


def answer(line: str) -> None:
    """Write a line to the process that controls the program.

    A single write prevents the lines of actors, which another thread writes, from appearing between
    the text and its newline, as they can with `print` under PYTHONUNBUFFERED.
    """
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run until the end of the input."""
    place, hosts, limit_s = Path(sys.argv[1]), int(sys.argv[2]), LIMIT_S
    os.environ["MESH_DEADLOCK_PROBE_S"] = "600"
    with ExitStack() as stack:
        far = [worker.address for worker in stack.enter_context(workers(hosts))] if hosts else []
        with Telemetry(TelemetryConfig(directory=str(place))) as telemetry, telemetry.serve():
            if far:
                attached = attach_to_workers(far)
                distant: Any = attached.spawn_procs(name="far").spawn("distant", Trainer)
                distant.say.call("from afar").get(limit_s)
            boss: Any = this_host().spawn_procs(name="office").spawn("boss", Boss)
            boss.hire.call_one().get(limit_s)
            answer("ready")
            for line in sys.stdin:
                word, _, about = line.strip().partition(" ")
                answer(getattr(boss, word).call_one(about).get(limit_s))
        shutdown_context().get(limit_s)


class Program:
    """The program, in a separate process."""

    def __init__(self, place: Path, hosts: int) -> None:
        words = [sys.executable, __file__, str(place), str(hosts)]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._said: list[str] = []
        assert self._read() == "ready"

    @property
    def pid(self) -> int:
        """The pid of the program."""
        return self._process.pid

    def do(self, what: str) -> str:
        """Execute a command in the program, and return its reply."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return self._read()

    def kill(self) -> None:
        """Kill the program."""
        self._process.kill()
        self._process.wait(LIMIT_S)

    def end(self) -> None:
        """Stop the program in an orderly way, unless it has been killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.poll() is None:
            try:
                self._process.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> str:
        assert self._process.stdout is not None
        # Lines of actors may appear in between.
        own = ("ready", "said", "stopped:", "failed", "locked", "killed", "spawned")
        timer = threading.Timer(LIMIT_S, self._process.kill)
        timer.start()
        try:
            for line in self._process.stdout:
                if line.startswith(own):
                    return line.strip()
        finally:
            timer.cancel()
        raise AssertionError(f"the program has ended: {self._process.wait(LIMIT_S)}")


@contextmanager
def program(place: Path, hosts: int = 0) -> Iterator[Program]:
    """Run the program for the duration of the block."""
    started = Program(place, hosts)
    try:
        yield started
    finally:
        started.end()


if __name__ == "__main__":
    main()
