"""The programs of the conformance tests; each runs in a separate process, and some are killed.

Usage: `python -m mesh_jobs._conformance.program ACTION FOLDER CONTEXT SPEC`. A program prints one
line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from mesh_core import Credentials, MeshError, attach_to_workers, configured
from mesh_jobs._backend.registry import load_backend
from mesh_jobs._conformance.actor import pids_on
from mesh_jobs._errors import SchedulerUnreachable
from mesh_jobs._job.job import Job
from mesh_jobs._job.lookup import job_load
from mesh_jobs._spec import JobSpec

__all__ = ["CLIENT_STATUS"]

_UP_S = 120.0
_REFUSED_S = 3.0
#: The exit status of the client script of the conformance tests.
CLIENT_STATUS = 7


def main() -> int:
    """Run one program and return the exit status."""
    action, folder, context, spec = sys.argv[1:]
    actions: Mapping[str, Callable[[str, str, JobSpec], Any]] = {
        "use": _use,
        "find-again": _find_again,
        "inside": _inside,
        "wait-inside": _wait_inside,
        "use_wrong_credentials": _use_wrong_credentials,
        "run-and-die": _run_and_die,
        "die-before-allocate": lambda *job: _apply_and_die(*job, is_after=False),
        "die-after-allocate": lambda *job: _apply_and_die(*job, is_after=True),
        "die-before-release": lambda *job: _kill_and_die(*job, is_after=False),
        "die-after-release": lambda *job: _kill_and_die(*job, is_after=True),
    }
    said = actions[action](folder, context, JobSpec.from_json(json.loads(spec)))
    print(json.dumps(said), flush=True)
    return 0


def _use(folder: str, context: str, _spec: JobSpec) -> dict[str, Any]:
    """Use a job that another program applied, and leave it running."""
    job = job_load(context, folder=folder)
    state = job.state(timeout=_UP_S)
    addresses = [host.address for host in job.status().hosts]
    return {"addresses": addresses, "pids": {name: pids_on(state[name]) for name in state}}


def _find_again(folder: str, context: str, _spec: JobSpec) -> dict[str, Any]:
    """Use a job whose workers are cached; retry until the workers are free."""
    until = time.monotonic() + _UP_S
    while True:
        try:
            state = job_load(context, folder=folder).state(timeout=0.0)
        except SchedulerUnreachable:
            if time.monotonic() >= until:
                raise
        else:
            return {name: pids_on(state[name]) for name in state}


def _inside(_folder: str, context: str, spec: JobSpec) -> None:
    """Use the enclosing job as its client script, and exit with a specific status."""
    # A script that was written to run outside a job names a folder, which is ignored here.
    job = Job.of(spec, context=context, folder="/nowhere").apply()
    state = job.state(timeout=_UP_S)
    print(json.dumps({"pids": {name: pids_on(state[name]) for name in state}}), flush=True)
    job.kill()
    assert len(pids_on(job.state(timeout=_UP_S)[spec.meshes[0].name])) == spec.meshes[0].hosts
    sys.exit(CLIENT_STATUS)


def _wait_inside(_folder: str, context: str, spec: JobSpec) -> None:
    """Run as a client script until terminated."""
    Job.of(spec, context=context).state(timeout=_UP_S)
    print(json.dumps({"waits": os.getpid()}), flush=True)
    while True:
        signal.pause()


def _use_wrong_credentials(folder: str, context: str, _spec: JobSpec) -> dict[str, Any]:
    """Try to use the hosts of a job with credentials of another authority."""
    addresses = [host.address or "" for host in job_load(context, folder=folder).status().hosts]
    with configured(attach_timeout_s=_REFUSED_S):
        hosts = attach_to_workers(addresses, credentials=Credentials.create())
        try:
            return {"pids": pids_on(hosts)}
        except (MeshError, TimeoutError) as error:
            return {"refused": str(error)}


def _run_and_die(folder: str, context: str, spec: JobSpec) -> None:
    """Kill this program while it uses the hosts."""
    state = Job.of(spec, context=context, folder=folder).apply().state(timeout=_UP_S)
    pids = {name: pids_on(state[name]) for name in state}
    print(json.dumps({"pids": pids}), flush=True)
    _die()


def _apply_and_die(folder: str, context: str, spec: JobSpec, *, is_after: bool) -> None:
    """Kill this program between creating the allocation id and storing the allocation."""
    _die_at(spec, "allocate", is_after=is_after)
    Job.of(spec, context=context, folder=folder).apply()


def _kill_and_die(folder: str, context: str, spec: JobSpec, *, is_after: bool) -> None:
    """Kill this program while it releases the hosts."""
    _die_at(spec, "release", is_after=is_after)
    job_load(context, folder=folder).kill()


def _die_at(spec: JobSpec, method: str, *, is_after: bool) -> None:
    backend = type(load_backend(spec.backend, spec.options))
    work = getattr(backend, method)

    def fatal(*arguments: Any) -> None:
        if is_after:
            work(*arguments)
        _die()

    setattr(backend, method, fatal)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
