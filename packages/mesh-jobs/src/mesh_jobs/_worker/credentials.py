"""The credentials of a worker, which are passed as one secret and unpacked to a private folder."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from mesh_core import CredentialsError

__all__ = ["secret_files", "sweep", "unpacked"]

_PREFIX = f"mesh-worker-{os.getuid()}-"
_YOUNG_S = 60.0


def secret_files(secret: str) -> dict[str, str]:
    """Read a secret, and return the names and contents of its files.

    Args:
        secret: The path of the secret or of a folder of credentials, `-` for standard input, or
            `env:NAME` for a variable.

    Raises:
        CredentialsError: The content is not a worker's secret.
        OSError: The secret cannot be read.
    """
    if os.path.isdir(secret):
        return {path.name: path.read_text() for path in Path(secret).iterdir() if path.is_file()}
    return _files(_content(secret), secret)


@contextmanager
def unpacked(files: Mapping[str, str]) -> Iterator[Path]:
    """Write credentials to a private folder, which is removed at the end of the context.

    Raises:
        OSError: The folder cannot be written.
    """
    sweep()
    folder, lock = _locked_folder()
    try:
        keys = folder / "keys"
        keys.mkdir(mode=0o700)
        for name, text in files.items():
            number = os.open(keys / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(number, "w") as file:
                file.write(text)
        yield keys
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        sweep()


def _locked_folder() -> tuple[Path, int]:
    """Create a folder with a lock that the kernel releases when this process exits."""
    fresh = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    lock = os.open(fresh, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # The folder gets its final name after it is locked, so an unlocked one has no owner.
    folder = fresh.with_name(fresh.name.removeprefix("."))
    os.rename(fresh, folder)
    return folder, lock


def _content(secret: str) -> bytes:
    if secret == "-":
        return sys.stdin.buffer.read()
    if secret.startswith("env:"):
        # Removed from the environment, so that no child process inherits it.
        return os.environ.pop(secret.removeprefix("env:"), "").encode()
    return Path(secret).read_bytes()


def _files(content: bytes, secret: str) -> dict[str, str]:
    try:
        files = json.loads(content)
        named = {str(name): str(text) for name, text in files.items()}
    except (ValueError, AttributeError):
        raise CredentialsError(
            f"{secret} does not contain a worker secret: pass the `secret` of its `WorkerCommand`"
        ) from None
    if any(name != os.path.basename(name) or name.startswith(".") for name in named):
        raise CredentialsError(f"{secret} names a file outside its folder: pass another")
    return named


def sweep() -> None:
    """Remove the folders of killed workers, whose locks are free."""
    temporary = Path(tempfile.gettempdir())
    for folder in [*temporary.glob(f"{_PREFIX}*"), *temporary.glob(f".{_PREFIX}*")]:
        with suppress(OSError):
            about = folder.stat(follow_symlinks=False)
            # A recent folder without its final name may not be locked yet.
            is_young = folder.name.startswith(".") and time.time() - about.st_mtime < _YOUNG_S
            if about.st_uid != os.getuid() or is_young:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
