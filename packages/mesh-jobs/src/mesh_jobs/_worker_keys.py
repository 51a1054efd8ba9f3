"""A worker's secret: brought as one text, kept as a private folder while the worker lives."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mesh_core import CredentialsError

__all__ = ["unpacked"]

_PREFIX = f"mesh-worker-{os.getuid()}-"
_YOUNG_S = 60.0


@contextmanager
def unpacked(secret: str) -> Iterator[Path]:
    """Makes the folder that a worker's credentials are read from; removes it at the end.

    Args:
        secret: The file with the secret; `-` is the standard input.

    Raises:
        CredentialsError: It is no secret.
        OSError: It cannot be read.
    """
    content = sys.stdin.buffer.read() if secret == "-" else Path(secret).read_bytes()
    files = _files(content, secret)
    _sweep()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(folder, os.O_RDONLY)
    try:
        # Held as long as this process lives, however it ends: see `_sweep`.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def _sweep() -> None:
    """Removes what workers left here that were killed: their locks are free."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            # A young one may belong to a worker that has not locked it yet.
            if (
                folder.stat().st_uid != os.getuid()
                or time.time() - folder.stat().st_mtime < _YOUNG_S
            ):
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
