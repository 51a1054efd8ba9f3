"""How a warden begins: as a program of its own, or as a fork of a seed."""

import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mesh_core._processes import kernel as _kernel
from mesh_core._processes import stdio as _stdio
from mesh_core._processes import template as _template
from mesh_core._processes.link import Link
from mesh_core._processes.messages import Sprout, World
from mesh_core._processes.spawner import Warden

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
    """Starts a warden in a fresh interpreter.

    Args:
        world: Its environment and path.
        job_dir: The directory to remove at its end.
        launch: The module whose `main` runs a process.
        denied: Names of modules never to preload.
        ends: Its end of the socket pair with the controller; where it prints; where its templates
            leave seeds, if anywhere.
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
    """Runs the warden.

    Args:
        fd: The warden's end of the socket pair with the controller.
        bed: The descriptor of where templates leave seeds; below 0 when nobody wants any.
        job_dir: The directory to remove at the end.
        launch: The module whose `main` runs a process.
        denied: Names of modules never to preload, separated by commas.
    """
    _settle(fd)
    if bed >= 0:
        os.set_inheritable(bed, False)
    controller = Link(socket.socket(fileno=fd))
    _run(
        Warden(
            controller, job_dir, launch, denied.split(","),
            owner=os.getppid(), bed=bed if bed >= 0 else None,
        )
    )  # fmt: skip


def sprout(fd: int, wanted: Sprout) -> None:
    """Runs a warden in the fork of a seed.

    Args:
        fd: The warden's end of the socket pair with the session.
        wanted: What the session asked for.
    """
    gc.enable()
    _template.enter(wanted.world)
    _settle(fd)
    controller = Link(socket.socket(fileno=fd))
    # The seed stays for the next job: no other is wanted.
    _run(
        Warden(
            controller, wanted.job_dir, wanted.launch, wanted.denied.split(","),
            owner=wanted.session, bed=None, is_blank=False,
        )
    )  # fmt: skip


def _settle(fd: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _stdio.install()
    _kernel.adopt_orphans()
    _kernel.set_title("mesh-warden")
    os.set_inheritable(fd, False)
    sys.argv[:] = [""]


def _run(warden: Warden) -> NoReturn:
    warden.run()
    _stdio.flush()
    os._exit(0)
