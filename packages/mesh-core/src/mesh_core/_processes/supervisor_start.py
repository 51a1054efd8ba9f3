"""Start of a process supervisor, in a fresh interpreter or as a fork of a retained template."""

import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mesh_core._processes import template as _template
from mesh_core._processes.link import Link
from mesh_core._processes.messages import SupervisorRequest, World
from mesh_core._processes.supervisor import Supervisor
from mesh_core._system import kernel as _kernel
from mesh_core._system import stdio as _stdio

_PROGRAM = (
    "import sys; fd, cache_inlet, job_dir, launch, denied, *sys.path = sys.argv[1:]; "
    "from mesh_core._processes.supervisor_start import main; "
    "main(int(fd), int(cache_inlet), job_dir, launch, denied)"
)


def execute(
    world: World,
    job_dir: Path,
    launch: str,
    denied: Sequence[str],
    ends: tuple[int, int, int | None],
) -> subprocess.Popen[bytes]:
    """Start a supervisor in a fresh interpreter.

    Args:
        world: Its environment and path.
        job_dir: The directory to remove at its end.
        launch: The module whose `main` runs a process.
        denied: Names of modules that must never be preloaded.
        ends: Descriptors: its end of the socket pair with the controller, its output, and the inlet
            of the worker's template cache, if any.
    """
    link, log, cache_inlet = ends
    return subprocess.Popen(
        [
            sys.executable,
            *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            *("-c", _PROGRAM, str(link), str(-1 if cache_inlet is None else cache_inlet)),
            *(str(job_dir.absolute()), launch, ",".join(denied), *world.path),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=dict(world.env),
        pass_fds=[link] if cache_inlet is None else [link, cache_inlet],
        start_new_session=True,
    )


def main(fd: int, cache_inlet: int, job_dir: str, launch: str, denied: str) -> None:
    """Run the supervisor.

    Args:
        fd: The supervisor's end of the socket pair with the controller.
        cache_inlet: The descriptor through which templates leave retained templates; negative for
            none.
        job_dir: The directory to remove at the end.
        launch: The module whose `main` runs a process.
        denied: Names of modules that must never be preloaded, separated by commas.
    """
    _settle(fd)
    if cache_inlet >= 0:
        os.set_inheritable(cache_inlet, False)
    controller = Link(socket.socket(fileno=fd))
    _run(
        Supervisor(
            controller, job_dir, launch, denied.split(","),
            owner=os.getppid(), cache_inlet=cache_inlet if cache_inlet >= 0 else None,
            start_supervisor=run_supervisor,
        )
    )  # fmt: skip


def run_supervisor(fd: int, wanted: SupervisorRequest) -> None:
    """Run a supervisor in the fork of a retained template.

    Args:
        fd: The supervisor's end of the socket pair with the session.
        wanted: The request of the session.
    """
    gc.enable()
    _template.enter(wanted.world)
    _settle(fd)
    controller = Link(socket.socket(fileno=fd))
    # The retained template stays available to the next job, so no other is needed.
    _run(
        Supervisor(
            controller, wanted.job_dir, wanted.launch, wanted.denied.split(","),
            owner=wanted.session, cache_inlet=None, start_supervisor=run_supervisor, is_blank=False,
        )
    )  # fmt: skip


def _settle(fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _stdio.install()
    _kernel.adopt_orphans()
    _kernel.set_title("mesh-supervisor")
    os.set_inheritable(fd, False)
    sys.argv[:] = [""]


def _run(supervisor: Supervisor) -> NoReturn:
    supervisor.run()
    _stdio.flush()
    os._exit(0)
