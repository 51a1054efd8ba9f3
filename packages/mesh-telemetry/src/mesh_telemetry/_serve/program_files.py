"""Files through which programs that serve telemetry are found by programs of the same user."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mesh_telemetry._errors import StorageError, TelemetryError
from mesh_telemetry._events.folders import is_private, make_private
from mesh_telemetry._events.program_line import program_line

if TYPE_CHECKING:
    from mesh_telemetry._serve.scopes import Tokens

__all__ = [
    "ServedProgram",
    "ServedProgramFile",
    "served_program",
    "served_programs",
]

_ACT_SUFFIX = ".act-token"
_INCOMPLETE_SUFFIX = ".incomplete"
_TOKEN_LEN_MAX = 4096


@dataclass(frozen=True)
class ServedProgram:
    """A program that serves queries.

    Attributes:
        pid: Its process id.
        program: Its command line.
        url: Its address for HTTP.
        flight_url: Its address for Arrow Flight SQL.
        token: The read token, which requests send as `Authorization: Bearer <token>`.
        act_token_file: The file with the act token, which only this user can read.
    """

    pid: int
    program: str
    url: str
    flight_url: str
    token: str
    act_token_file: str

    def act_token(self) -> str:
        """Read the act token.

        Raises:
            TelemetryError: The program has stopped serving, or the file is not private.
        """
        try:
            fd = os.open(self.act_token_file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise TelemetryError(
                f"cannot read the act token of program {self.pid} ({error.strerror}): the program"
                " no longer serves telemetry"
            ) from error
        with open(fd) as file:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise TelemetryError(
                    f"{self.act_token_file!r} is not a private file of this user: remove it, and"
                    " restart the program"
                )
            return file.read(_TOKEN_LEN_MAX)


class ServedProgramFile:
    """Files through which other programs of this user find a program, until they are removed.

    One file has the addresses and the read token, another one the act token, so that a program that
    only reads does not load a token that it must not use. This process holds a lock on the first
    file, which the kernel releases when the process exits. Other programs remove files that are not
    locked.

    Args:
        pid: The process that serves.
        url: Its address for HTTP.
        flight_url: Its address for Arrow Flight SQL.
        tokens: The tokens of its servers.

    Raises:
        OSError: The files cannot be written.
    """

    def __init__(self, pid: int, url: str, flight_url: str, tokens: Tokens) -> None:
        self._path: Path = _program_folder() / f"{pid}-{secrets.token_hex(4)}.json"
        act_path = self._path.with_suffix(_ACT_SUFFIX)
        _remove_stale(self._path.parent)
        served = ServedProgram(pid, program_line(), url, flight_url, tokens.read, str(act_path))
        incomplete = self._path.with_suffix(_INCOMPLETE_SUFFIX)
        self._lock = _write_locked(incomplete, json.dumps(asdict(served)))
        _write_private(act_path, tokens.act)
        # The rename makes the file visible with its complete content.
        incomplete.rename(self._path)

    def remove(self) -> None:
        """Remove the files."""
        _remove_program_file(self._path)
        os.close(self._lock)


def _write_private(path: Path, content: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(content)


def _write_locked(path: Path, content: str) -> int:
    """Write a file that this process keeps locked; return its descriptor."""
    while True:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:
            break
        # Another program removed the file before it was locked.
        os.close(fd)
    with open(fd, "w", closefd=False) as file:
        file.write(content)
    return fd


def _is_locked(path: Path) -> bool:
    """Return whether the program that wrote a file is still alive."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        # A shared lock, so that programs that check at the same time do not block each other.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _remove_stale(folder: Path) -> None:
    """Remove the files of killed programs of this user."""
    for path in [*folder.glob("*.json"), *folder.glob(f"*{_INCOMPLETE_SUFFIX}")]:
        with suppress(OSError):
            if not _is_locked(path):
                _remove_program_file(path)


def _remove_program_file(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(_ACT_SUFFIX).unlink(missing_ok=True)


def served_programs() -> list[ServedProgram]:
    """Return the programs of this user on this machine that serve queries, oldest first."""
    found = []
    notes = [note for folder in _program_folders() for note in folder.glob("*.json")]
    for path in sorted(notes, key=_age):
        with suppress(OSError, ValueError, TypeError):
            if _is_locked(path):
                found.append(ServedProgram(**json.loads(path.read_text())))
            else:
                # The program was killed.
                _remove_program_file(path)
    return found


def served_program(pid: int | None = None) -> ServedProgram:
    """Return the program of this user that serves queries, or the one with a given pid.

    Raises:
        TelemetryError: No program serves queries, or there are several and no pid is given.
    """
    found = [one for one in served_programs() if pid in (None, one.pid)]
    if not found:
        which = "no program" if pid is None else f"no program with pid {pid}"
        raise TelemetryError(
            f"{which} of this user serves telemetry on this machine: call serve() in the program"
        )
    if len(found) > 1:
        programs = ", ".join(f"--pid {one.pid} ({one.program})" for one in found)
        raise TelemetryError(f"several programs serve telemetry: choose one of {programs}")
    return found[0]


def _age(path: Path) -> float:
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _program_folder() -> Path:
    """Return a folder for these files that only this user can enter.

    Raises:
        StorageError: It cannot be created.
    """
    runtime, name = _runtime(), _folder_name()
    with suppress(StorageError):
        make_private(runtime / name, "")
        return runtime / name
    # Another user has created that name. Readers look into all folders with this prefix.
    for folder in _program_folders():
        return folder
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=runtime))


def _program_folders() -> list[Path]:
    """Return the folders that may contain files of this user."""
    found = sorted(_runtime().glob(f"{_folder_name()}*"))
    return [folder for folder in found if is_private(folder)]


def _folder_name() -> str:
    return f"mesh-served-{os.geteuid()}"


def _runtime() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
