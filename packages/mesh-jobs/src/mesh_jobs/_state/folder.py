"""The state folder of a job, `.mesh/<context>/`: its record, credentials, reports and logs."""

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
# The credentials of a job are created once, and must outlive a long allocation.
_KEYS_LIVE_S = 30 * 24 * 3600.0


class StateFolder:
    """The state of one job.

    Args:
        path: The folder.
        is_inside: Whether this program is the client script of the job.
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
        """Lock the job inside the context; a folder without a record is removed at the end.

        Raises:
            JobBusy: Another program holds the lock.
        """
        with locked(self.path / "lock", _LOCK_S):
            try:
                yield
            finally:
                if not (self.path / "job.json").exists():
                    self._remove()

    @contextmanager
    def locked_if_free(self) -> Iterator[bool]:
        """Lock the job if it is applied and the lock is free; yield whether that succeeded."""
        with locked_if_free(self.path / "lock") as is_ours:
            yield is_ours and (self.path / "job.json").exists()

    def read(self) -> Record | None:
        """Read the record; None if no job is applied.

        Raises:
            JobError: The record has another version, or belongs to another user.
        """
        path = self.path / "job.json"
        try:
            if path.exists():
                # The record contains commands to run, such as the command of ssh.
                check_owner(self.path)
                check_owner(path)
        except OSError as error:
            raise JobError(f"{error.filename} {error.strerror}") from error
        try:
            value = read_json(path)
        except (OSError, ValueError) as error:
            raise JobError(f"{path} cannot be read: {error}: restore its content") from error
        return None if value is None else Record.from_json(value, path)

    def write(self, record: Record) -> None:
        """Write the record atomically."""
        write_json(self.path / "job.json", record.to_json())

    def begin(self, shared: Credentials | None) -> None:
        """Create the subfolders and the credentials of a new job.

        Args:
            shared: The credentials of other jobs of this program. None creates new credentials.
        """
        for part in _PARTS:
            shutil.rmtree(self.path / part, ignore_errors=True)
            private_folder(self.path / part)
        credentials = shared or Credentials.create(valid_for=_KEYS_LIVE_S)
        credentials.save(self.path / "keys" / "controller")
        share_credentials(credentials, is_attaching=False, others=0)

    def credentials(self) -> Credentials:
        """Read the credentials of the job's controller.

        Raises:
            CredentialsError: The credentials are missing, or other users can read them.
        """
        return Credentials.load(self.path / "keys" / "controller")

    def clear(self) -> None:
        """Remove everything but the lock, which is removed when it is released."""
        # The record is removed last: while it exists, the next program completes the removal.
        for part in _PARTS:
            shutil.rmtree(self.path / part, ignore_errors=True)
        # Hidden files include temporary files of killed programs.
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
        # The lock is removed last: after that, another program may use the folder.
        with suppress(OSError):
            os.unlink(self.path / "lock")
            self.path.rmdir()
        self.remove_empty_parent()

    def remove_empty_parent(self) -> None:
        """Remove the folder of all contexts if it is empty; a killed program may have left it."""
        with suppress(OSError):
            self.path.parent.rmdir()

    def note(self, kind: str, text: str, mesh: str | None = None, rank: int | None = None) -> None:
        """Append an event of the job."""
        line = json.dumps(JobEvent(time.time(), kind, text, mesh, rank).to_json())
        with suppress(FileNotFoundError), (self.path / "events.jsonl").open("a") as file:
            file.write(line + "\n")

    def events(self) -> list[JobEvent]:
        """Return the events of the job, oldest first."""
        try:
            lines = (self.path / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [JobEvent(**json.loads(line)) for line in lines]


def find_folder(context: str | None, folder: str | os.PathLike[str] | None) -> StateFolder:
    """Find the state folder of a context.

    In the client script of a job, the context of that job always means the enclosing job.

    Args:
        context: The name of the context. Defaults to `default`.
        folder: The working folder of the job. Defaults to the current folder, or the folder where a
            named context was applied.

    Raises:
        ConfigError: The name is invalid.
        JobError: Several other folders have a job of that context.
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
            f"several folders have a job of context {name!r}: {listed}: change to one of them, or "
            "pass folder="
        )
    return StateFolder(known[0] if known else here)


def applied_folders(folder: str | os.PathLike[str] | None = None) -> list[StateFolder]:
    """Return the jobs that are applied in a folder, and all jobs with a named context."""
    here = Path(folder or ".").absolute() / _FOLDER
    found = [here, *here.iterdir()] if here.is_dir() else []
    paths = {path for path in found if (path / "job.json").exists()}
    paths.update(path for path in _known(None) if (path / "job.json").exists())
    return [StateFolder(path) for path in sorted(paths)]


def remember(path: Path) -> None:
    """Register the folder of a named context, so that any folder finds it by name."""
    if path.name == DEFAULT_CONTEXT or path in _known(path.name):
        return
    with locked(_home() / "contexts" / ".lock", _LOCK_S):
        write_json(_home() / "contexts" / path.name, [*map(str, _known(path.name)), str(path)])


def forget(path: Path) -> None:
    """Remove the registration of a context."""
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
        return []  # Not a registration: the job is still found from its own folder.
