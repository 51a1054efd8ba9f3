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
from mesh_core._processes.messages import Sprout, World
from mesh_core._processes.spawner import Supervisor
from mesh_core._system import kernel as _kernel
from mesh_core._system import stdio as _stdio

_PROGRAM = (
    "import sys; fd, bed, job_dir, launch, denied, *sys.path = sys.argv[1:]; "
    "from mesh_core._processes.spawner_start import main; "
    "main(int(fd), int(bed), job_dir, launch, denied)"
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
    link, log, bed = ends
    return subprocess.Popen(
        [
            sys.executable,
            *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
            *("-c", _PROGRAM, str(link), str(-1 if bed is None else bed)),
            *(str(job_dir.absolute()), launch, ",".join(denied), *world.path),
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env=dict(world.env),
        pass_fds=[link] if bed is None else [link, bed],
        start_new_session=True,
    )


def main(fd: int, bed: int, job_dir: str, launch: str, denied: str) -> None:
    """Run the supervisor.

    Args:
        fd: The supervisor's end of the socket pair with the controller.
        bed: The descriptor through which templates leave retained templates; negative for none.
        job_dir: The directory to remove at the end.
        launch: The module whose `main` runs a process.
        denied: Names of modules that must never be preloaded, separated by commas.
    """
    _settle(fd)
    if bed >= 0:
        os.set_inheritable(bed, False)
    controller = Link(socket.socket(fileno=fd))
    _run(
        Supervisor(
            controller, job_dir, launch, denied.split(","),
            owner=os.getppid(), bed=bed if bed >= 0 else None,
            start_supervisor=sprout,
        )
    )  # fmt: skip


def sprout(fd: int, wanted: Sprout) -> None:
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
            owner=wanted.session, bed=None, start_supervisor=sprout, is_blank=False,
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
