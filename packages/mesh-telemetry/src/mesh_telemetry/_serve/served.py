"""Where programs of a user note that they answer queries, for other programs of that user."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mesh_telemetry._errors import TelemetryError
from mesh_telemetry._events.folders import make_private

__all__ = ["Served", "note", "program_line", "served_program", "served_programs"]


@dataclass(frozen=True)
class Served:
    """A program that answers queries.

    Attributes:
        pid: Its process.
        program: What it was started as.
        url: Where it answers over HTTP.
        flight_url: Where it answers over Arrow Flight SQL.
        token: What each request brings along as `Authorization: Bearer <token>`.
    """

    pid: int
    program: str
    url: str
    flight_url: str
    token: str


def program_line() -> str:
    """Gives what this program was started as."""
    return Path("/proc/self/cmdline").read_text().replace("\0", " ").strip()


def note(served: Served) -> Path:
    """Lets other programs of this user find one, until the file is removed.

    Raises:
        StorageError: The folder for such notes is open to others.
    """
    path = _folder() / f"{served.pid}-{secrets.token_hex(4)}.json"
    coming = path.with_suffix(".coming")
    with open(os.open(coming, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(asdict(served), file)
    # Who reads it finds all of it.
    coming.rename(path)
    return path


def served_programs() -> list[Served]:
    """Gives the programs of this user on this machine that answer queries, oldest first.

    Raises:
        StorageError: The folder for such notes is open to others.
    """
    found = []
    for path in sorted(_folder().glob("*.json"), key=_age):
        with suppress(OSError, ValueError, TypeError):
            served = Served(**json.loads(path.read_text()))
            if os.path.exists(f"/proc/{served.pid}"):
                found.append(served)
            else:
                # It was killed.
                path.unlink()
    return found


def served_program(pid: int | None = None) -> Served:
    """Gives the program of this user that answers queries, or the one with a pid.

    Raises:
        TelemetryError: There is none, or there are several and none is said.
        StorageError: The folder for such notes is open to others.
    """
    found = [one for one in served_programs() if pid in (None, one.pid)]
    if not found:
        which = "no program" if pid is None else f"no program with pid {pid}"
        raise TelemetryError(f"{which} of yours serves telemetry here: have it call serve()")
    if len(found) > 1:
        programs = ", ".join(f"--pid {one.pid} ({one.program})" for one in found)
        raise TelemetryError(f"several programs can be asked: choose one, {programs}")
    return found[0]


def _age(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(runtime, f"mesh-telemetry-{os.getuid()}")
    make_private(folder, "set XDG_RUNTIME_DIR")
    return folder
