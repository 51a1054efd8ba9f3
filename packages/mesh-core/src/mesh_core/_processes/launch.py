"""How a process of a mesh begins and ends."""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mesh_core._program.runtime import Runtime

__all__ = ["leave", "main"]

# How long a process that leaves may wait for others to read what it has sent.
_DRAIN_LIMIT_S = 1.0

_over = threading.Event()
_status = 0


def main(entry: bytes) -> int:
    """Runs a process of a mesh until it is told to end; gives its exit status.

    Args:
        entry: What the agent of the host has packed for it.
    """
    from mesh_core._configuration.config import inherit
    from mesh_core._program.runtime import Identity, Runtime, adopt

    # Of the thread that crashed alone: the last lines of the log go into the error.
    faulthandler.enable(2, all_threads=False)
    _show_logging()
    facts: dict[str, Any] = pickle.loads(entry)
    inherit(facts["config"])
    runtime = Runtime(Identity(**facts["identity"]))
    adopt(runtime)
    if facts["early_events"]:
        runtime.engine.start_early_events(facts["early_events"])
    for host, epoch in facts["host_epochs"].items():
        runtime.engine.host_back(host, epoch)
    if facts["patches"]:
        from mesh_core._testing.mock import inherit_patches

        inherit_patches(facts["patches"])
    from mesh_core._actors.agent import Agent

    runtime.agent = Agent(runtime)
    problem = _set_up(runtime, facts["bootstrap"])
    runtime.engine.dial(runtime.host_agent_proc())
    if facts["bootstrap"]:
        runtime.engine.hold_early(False)
    if problem is not None:
        runtime.agent.refuse_set_up(problem)
    thread = threading.Thread(target=runtime.agent.run, name="mesh-agent", daemon=True)
    thread.start()
    _over.wait()
    # What was answered last may still wait for room in a socket.
    runtime.engine.drain(_DRAIN_LIMIT_S)
    return _status


def _show_logging() -> None:
    """Lets all that is logged be printed, with its level and name, until the user says how.

    Only where no handler is installed, so that `logging.basicConfig` and the like are in charge.
    """
    last = logging.lastResort
    if last is not None:
        last.setLevel(logging.NOTSET)
        last.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))


def _set_up(runtime: Runtime, bootstrap: bytes) -> BaseException | None:
    """Runs what the user wants run in the process before any actor; gives what it raised.

    The agent runs on a thread of its own for that time, and on another one afterwards: threads of
    actors inherit what `bootstrap` has set for the thread that it ran on, such as its processors.
    """
    if not bootstrap:
        return None
    from mesh_core._processes.bootstrap import run_set_up

    agent = runtime.agent
    # Spawns come once the agent of the host is dialled, which `main` does when this has returned.
    runtime.engine.hold_early(True)
    agent.begin_set_up()
    thread = threading.Thread(target=agent.run, name="mesh-set-up", daemon=True)
    thread.start()
    problem = run_set_up(runtime, bootstrap)
    agent.end_set_up(thread)
    return problem


def leave(status: int) -> None:
    """Ends the process: its main thread returns from `main`."""
    global _status
    _status = status
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            # Nobody reads any more, or the user has closed it.
            continue
    _over.set()


if __name__ == "__main__":
    from mesh_core._processes.command import take_entry

    # Imported under its own name, so that there is one of it.
    from mesh_core._processes.launch import main as run

    packed = take_entry()
    if packed is None:
        sys.exit(
            "mesh_core._processes.launch starts processes of a mesh and is not a program of its own"
        )
    code = run(packed)
    sys.stdout.flush()
    os._exit(code)
