"""Check that the documented queries explain each program: `nox -s agents`.

python -m bench.agents                   all programs
python -m bench.agents slow_rank         one of them
python -m bench.agents --ask slow_rank   start it, and print the symptom and the question
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import mcp

from bench.agents.answers import QUERIES_MAX, Problem, problems
from bench.agents.broken_program import READY

_READY_S_MAX = 90.0
#: Rows arrive a tenth of a second after the event, and a hang is reported after a second.
_FOUND_S_MAX = 20.0
_STOP_S_MAX = 10.0
_PATH = (str(Path(__file__).resolve().parents[2]), *filter(None, [os.environ.get("PYTHONPATH")]))
_COMMAND = "from mesh_telemetry._mcp.command import mcp; mcp()"
#: A longer result does not answer the question: its reader would have to search it.
_RESULT_LEN_MAX = 4000


@contextmanager
def running(problem: Problem) -> Iterator[int]:
    """Run a program until it reaches the state to examine, and yield its pid.

    Raises:
        RuntimeError: The program exited before that.
    """
    with tempfile.TemporaryFile("w+") as errors:
        program = subprocess.Popen(
            [sys.executable, str(problem.script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(_PATH)},
        )
        try:
            assert program.stdout is not None
            late = threading.Timer(_READY_S_MAX, program.kill)
            late.start()
            # A line that a process has printed may be on the same line.
            is_ready = any(READY in line for line in program.stdout)
            late.cancel()
            if not is_ready:
                errors.seek(0)
                raise RuntimeError(f"{problem.name} has ended: {errors.read()[-2000:]}")
            yield program.pid
        finally:
            program.send_signal(signal.SIGTERM)
            try:
                program.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
            assert program.stdout is not None
            program.stdout.close()
            with suppress(BrokenPipeError):
                assert program.stdin is not None
                program.stdin.close()


@asynccontextmanager
async def agent() -> AsyncIterator[Any]:
    """Connect to `mesh mcp` as a coding agent does."""
    parameters = mcp.StdioServerParameters(
        command=sys.executable, args=["-c", _COMMAND], env=dict(os.environ)
    )
    async with mcp.Client(parameters) as client:
        yield client


async def unexplained(client: Any, problem: Problem, pid: int) -> str:
    """Return why the queries do not explain the problem, or an empty string."""
    deadline = time.monotonic() + _FOUND_S_MAX
    while True:
        results = [await _called(client, query, pid) for query in problem.queries]
        shown = "\n".join(results)
        missing = [text for text in problem.found if text not in shown]
        if not missing and len(shown) <= _RESULT_LEN_MAX:
            return ""
        if time.monotonic() > deadline:
            return f"not found: {missing}; {len(shown)} characters: {shown[:1500]}"
        await asyncio.sleep(0.2)


async def _called(client: Any, query: Any, pid: int) -> str:
    arguments = {name: value for name, value in query.items() if name != "tool"}
    result = await client.call_tool(query["tool"], {**arguments, "pid": pid})
    found = result.structured_content
    if query["tool"] != "query" or result.is_error or found is None:
        return "\n".join(part.text for part in result.content)
    rows = found.get("result", found)["rows"]
    return "\n".join(" ".join(f"{name}={value}" for name, value in row.items()) for row in rows)


async def check(chosen: list[Problem]) -> int:
    """Check problems sequentially, and return how many are not explained."""
    failed = 0
    async with agent() as client:
        for problem in chosen:
            started = time.monotonic()
            try:
                with running(problem) as pid:
                    why = await unexplained(client, problem, pid)
            except RuntimeError as error:
                why = str(error)
            if len(problem.queries) > QUERIES_MAX:
                why = f"more than {QUERIES_MAX} queries"
            failed += bool(why)
            outcome = "explained" if not why else f"NOT EXPLAINED: {why}"
            queries = f"{len(problem.queries)} of {QUERIES_MAX} queries"
            took = time.monotonic() - started
            print(f"{problem.name:<28}{queries}  {took:5.1f} s  {outcome}", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} programs explained")
    return failed


def main() -> int:
    """Check the programs that the command line names, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="PROGRAM")
    parser.add_argument("--ask", action="store_true", help="start one, for an agent to examine")
    options = parser.parse_args()
    known = {problem.name: problem for problem in problems()}
    if unknown := set(options.names) - known.keys():
        parser.error(f"unknown programs: {', '.join(unknown)}: choose of {', '.join(known)}")
    chosen = [known[name] for name in options.names or known]
    if not options.ask:
        return 1 if asyncio.run(check(chosen)) else 0
    with running(chosen[0]) as pid:
        print(f"{chosen[0].symptom}\n{chosen[0].question}\nThe program has the pid {pid}.")
        input("Press Enter to see the answer: ")
        print(chosen[0].answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
