"""A worker's secret: brought as one text, kept as a private folder while the worker lives."""

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
    """Reads a secret: the names and contents of its files.

    Args:
        secret: The file with the secret; `-` is the standard input, and `env:NAME` a variable.

    Raises:
        CredentialsError: It is no secret.
        OSError: It cannot be read.
    """
    return _files(_content(secret), secret)


@contextmanager
def unpacked(files: Mapping[str, str]) -> Iterator[Path]:
    """Makes the folder that a worker's credentials are read from; removes it at the end.

    Raises:
        OSError: It cannot be written.
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
    """Makes a folder, and holds its lock as long as this process lives, however it ends."""
    fresh = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    lock = os.open(fresh, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Under its own name it is locked from the beginning: what is not locked is nobody's.
    folder = fresh.with_name(fresh.name.removeprefix("."))
    os.rename(fresh, folder)
    return folder, lock


def _content(secret: str) -> bytes:
    if secret == "-":
        return sys.stdin.buffer.read()
    if secret.startswith("env:"):
        # Taken away, so that no process of a program inherits it.
        return os.environ.pop(secret.removeprefix("env:"), "").encode()
    return Path(secret).read_bytes()


def _files(content: bytes, secret: str) -> dict[str, str]:
    try:
        files = json.loads(content)
        named = {str(name): str(text) for name, text in files.items()}
    except (ValueError, AttributeError):
        raise CredentialsError(
            f"{secret} holds no secret of a worker: bring what the order's command has as `secret`"
        ) from None
    if any(name != os.path.basename(name) or name.startswith(".") for name in named):
        raise CredentialsError(f"{secret} names a file outside its folder: bring another")
    return named


def sweep() -> None:
    """Removes what workers left on this machine that were killed: their locks are free."""
    temporary = Path(tempfile.gettempdir())
    for folder in [*temporary.glob(f"{_PREFIX}*"), *temporary.glob(f".{_PREFIX}*")]:
        with suppress(OSError):
            about = folder.stat(follow_symlinks=False)
            # A young one without its own name may be about to be locked.
            is_young = folder.name.startswith(".") and time.time() - about.st_mtime < _YOUNG_S
            if about.st_uid != os.getuid() or is_young:
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
