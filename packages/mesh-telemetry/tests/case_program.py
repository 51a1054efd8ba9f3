"""A served program whose actor fails on request, so that cases are saved."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mesh_core import Actor, configure, endpoint, shutdown_context, this_host
from mesh_core.recording import record
from mesh_telemetry import Telemetry, TelemetryConfig
from mesh_telemetry._serve.program_files import ServedProgram, served_program

LIMIT_S = 60.0
RECORD = "record"


class WritesFile:
    """An object whose unpickling creates a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._path, "w")


class Loader(Actor):
    """Fails on request."""

    @endpoint
    def load(self, name: str) -> None:
        raise KeyError(name)

    @endpoint
    def store(self, file: Any) -> None:
        file.close()
        raise OSError("the file is closed")


def main() -> None:
    """Run until the end of the input."""
    place, cases = Path(sys.argv[1]), Path(sys.argv[2])
    if sys.argv[3] == RECORD:
        record("loader", folder=cases)
    else:
        configure(record_dir=cases)
    with Telemetry(TelemetryConfig(directory=str(place))) as telemetry, telemetry.serve():
        loader: Any = this_host().spawn_procs({"n": 2}).spawn("loader", Loader)
        print("ready", flush=True)
        for line in sys.stdin:
            word, _, argument = line.strip().partition(" ")
            with suppress(KeyError, OSError):
                if word == "load":
                    loader.slice(n=1).load.call_one(argument).get(LIMIT_S)
                else:
                    loader.slice(n=1).store.call_one(WritesFile(argument)).get(LIMIT_S)
            print("done", flush=True)
    shutdown_context().get(LIMIT_S)


class CaseProgram:
    """The program, in a separate process.

    Attributes:
        served: Its addresses and tokens.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._expect("ready")
        self.served: ServedProgram = served_program(process.pid)

    def fail(self, word: str, argument: str) -> None:
        """Let the actor fail: `load NAME`, or `store PATH` of a file that unpickling creates.

        An actor that fails several times at the same line gives one case.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word} {argument}\n")
        self._process.stdin.flush()
        self._expect("done")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == f"{word}\n", line


@contextmanager
def case_program(place: Path, cases: Path, mode: str = RECORD) -> Iterator[CaseProgram]:
    """Run the program, which saves its cases in a folder."""
    words = [sys.executable, __file__, str(place), str(cases), mode]
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield CaseProgram(process)
        process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    main()
