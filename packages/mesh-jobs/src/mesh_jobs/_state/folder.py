"""The folder of a job, `.mesh/<context>/`: its record, keys, reports and logs."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mesh_core import Credentials
from mesh_jobs._atomic_files import check_owner, private_folder, read_json, write_json
from mesh_jobs._backend.report import JobEvent
from mesh_jobs._errors import JobError
from mesh_jobs._spec import check_name
from mesh_jobs._state.enclosing_job import enclosing_job_folder
from mesh_jobs._state.lock import locked, locked_if_free
from mesh_jobs._state.record import Record
from mesh_jobs._state.shared_credentials import share_credentials

__all__ = [
    "DEFAULT_CONTEXT",
    "HOST_CACHE_FILE",
    "StateFolder",
    "applied_folders",
    "find_folder",
    "forget",
    "remember",
]

DEFAULT_CONTEXT = "default"
#: The cache of the workers that serve the job: see `_job.host_cache`.
HOST_CACHE_FILE = "hosts.json"

_FOLDER = ".mesh"
_PARTS = ("keys", "workers", "logs")
_LOCK_S = 30.0
# Credentials of a job are made once: as long as a long allocation.
_KEYS_LIVE_S = 30 * 24 * 3600.0


class StateFolder:
    """Where one job's state is.

    Args:
        path: The folder.
        is_inside: Whether this program is the client of that job.
    """

    def __init__(self, path: Path, *, is_inside: bool = False) -> None:
        self.path = path
        self.is_inside = is_inside

    @property
    def context(self) -> str:
        """The name of the context."""
        return self.path.name

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lets no other program change the job meanwhile; leaves no empty folder behind.

        Raises:
            JobBusy: Another program is changing it.
        """
        with locked(self.path / "lock", _LOCK_S):
            try:
                yield
            finally:
                if not (self.path / "job.json").exists():
                    self._remove()

    @contextmanager
    def locked_if_free(self) -> Iterator[bool]:
        """Does the same for what need not be done: not while another does, nor without a job.

        Gives whether it has; makes nothing.
        """
        with locked_if_free(self.path / "lock") as is_ours:
            yield is_ours and (self.path / "job.json").exists()

    def read(self) -> Record | None:
        """Reads the record; None when nothing is applied.

        Raises:
            JobError: It is not a record of this version, or belongs to another user.
        """
        path = self.path / "job.json"
        try:
            if path.exists():
                # A record says which commands are run, such as those of ssh.
                check_owner(self.path)
                check_owner(path)
        except OSError as error:
            raise JobError(f"{error.filename} {error.strerror}") from error
        try:
            value = read_json(path)
        except (OSError, ValueError) as error:
            raise JobError(f"{path} cannot be read: {error}: put back what was there") from error
        return None if value is None else Record.from_json(value, path)

    def write(self, record: Record) -> None:
        """Stores the record, whole or not at all."""
        write_json(self.path / "job.json", record.to_json())

    def begin(self, shared: Credentials | None) -> None:
        """Makes the folder's parts, and the credentials of a new job.

        Args:
            shared: Those of other jobs of the same program, to use the same ones.
        """
        for part in _PARTS:
            shutil.rmtree(self.path / part, ignore_errors=True)
            private_folder(self.path / part)
        credentials = shared or Credentials.create(valid_for=_KEYS_LIVE_S)
        credentials.save(self.path / "keys" / "controller")
        share_credentials(credentials, is_attaching=False, others=0)

    def credentials(self) -> Credentials:
        """Reads the credentials of the job's controller.

        Raises:
            CredentialsError: They are not there or not private.
        """
        return Credentials.load(self.path / "keys" / "controller")

    def clear(self) -> None:
        """Forgets the job: all but the lock, which goes when it is let go of."""
        # The record last: as long as it is there, whoever comes next finishes this.
        for part in _PARTS:
            shutil.rmtree(self.path / part, ignore_errors=True)
        # What programs had not written whole when they were killed.
        for path in [
            self.path / "events.jsonl",
            self.path / HOST_CACHE_FILE,
            *self.path.glob(".*"),
        ]:
            path.unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            os.unlink(self.path / "job.json")

    def _remove(self) -> None:
        self.clear()
        forget(self.path)
        # The lock last: from then on the folder may be another program's.
        with suppress(OSError):
            os.unlink(self.path / "lock")
            self.path.rmdir()
            self.path.parent.rmdir()

    def note(self, kind: str, text: str, mesh: str | None = None, rank: int | None = None) -> None:
        """Adds to the job's events."""
        line = json.dumps(JobEvent(time.time(), kind, text, mesh, rank).to_json())
        with suppress(FileNotFoundError), (self.path / "events.jsonl").open("a") as file:
            file.write(line + "\n")

    def events(self) -> list[JobEvent]:
        """Reads the job's events, oldest first."""
        try:
            lines = (self.path / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [JobEvent(**json.loads(line)) for line in lines]


def find_folder(context: str | None, folder: str | os.PathLike[str] | None) -> StateFolder:
    """Gives the state of a context: here, or where that name was applied.

    In the client script of a job it is that of the job, whatever the folder.

    Args:
        context: Its name; `default` when left out.
        folder: In which folder; when left out here, and where that name is known from.

    Raises:
        ConfigError: The name is not one.
        JobError: Several folders have such a context, and this is none of them.
    """
    name = context or DEFAULT_CONTEXT
    check_name(name, "context")
    if (enclosing := enclosing_job_folder(name)) is not None:
        return StateFolder(enclosing, is_inside=True)
    here = Path(folder or ".").absolute() / _FOLDER / name
    if folder is not None or context is None or (here / "job.json").exists():
        return StateFolder(here)
    known = [path for path in _known(name) if (path / "job.json").exists()]
    if len(known) > 1:
        listed = ", ".join(str(path.parent.parent) for path in known)
        raise JobError(
            f"several folders have a job of context {name!r}: {listed}: go to one of them, or say "
            "which with folder="
        )
    return StateFolder(known[0] if known else here)


def applied_folders(folder: str | os.PathLike[str] | None = None) -> list[StateFolder]:
    """Gives all jobs that are applied here, and those with a name anywhere."""
    here = Path(folder or ".").absolute() / _FOLDER
    found = [here, *here.iterdir()] if here.is_dir() else []
    paths = {path for path in found if (path / "job.json").exists()}
    paths.update(path for path in _known(None) if (path / "job.json").exists())
    return [StateFolder(path) for path in sorted(paths)]


def remember(path: Path) -> None:
    """Notes where a named context is, so that it is found by its name from anywhere."""
    if path.name == DEFAULT_CONTEXT or path in _known(path.name):
        return
    with locked(_home() / "contexts" / ".lock", _LOCK_S):
        write_json(_home() / "contexts" / path.name, [*map(str, _known(path.name)), str(path)])


def forget(path: Path) -> None:
    """Removes the note of where a context is."""
    if path.name == DEFAULT_CONTEXT or path not in _known(path.name):
        return
    with locked(_home() / "contexts" / ".lock", _LOCK_S):
        left = [str(one) for one in _known(path.name) if one != path]
        if left:
            write_json(_home() / "contexts" / path.name, left)
        else:
            (_home() / "contexts" / path.name).unlink(missing_ok=True)


def _home() -> Path:
    return Path(os.environ.get("MESH_HOME") or Path.home() / ".mesh")


def _known(name: str | None) -> list[Path]:
    folder = _home() / "contexts"
    if name is None:
        names = [one.name for one in folder.iterdir()] if folder.is_dir() else []
        return [path for one in names if one[0] != "." for path in _known(one)]
    try:
        return [Path(one) for one in read_json(folder / name) or []]
    except (OSError, ValueError):
        return []  # No note of ours: the job is found in its own folder all the same.
