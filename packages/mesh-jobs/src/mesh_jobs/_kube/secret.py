"""Credentials as texts that a Secret of Kubernetes keeps."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mesh_core import Credentials
from mesh_jobs._errors import JobError

__all__ = ["CONTROLLER_KEY", "encoded", "packed", "unpacked"]

#: Under what key the credentials of the programs are in a Secret.
CONTROLLER_KEY = "controller"


def packed(credentials: Credentials) -> str:
    """Gives credentials as one text, which is as secret as they are."""
    with tempfile.TemporaryDirectory(prefix=".mesh-keys-") as made:
        folder = Path(made, "keys")
        credentials.save(folder)
        return json.dumps({one.name: one.read_text() for one in folder.iterdir()})


def unpacked(secret: str, contents: Mapping[str, str]) -> Credentials:
    """Reads the credentials of the programs from what a Secret has.

    Args:
        secret: Its name.
        contents: What it has by key, in base 64.

    Raises:
        JobError: It has none.
    """
    try:
        files = json.loads(base64.b64decode(contents[CONTROLLER_KEY]))
        with tempfile.TemporaryDirectory(prefix=".mesh-keys-") as made:
            folder = Path(made, "keys")
            folder.mkdir(mode=0o700)
            for name, text in files.items():
                path = folder / Path(name).name
                path.touch(mode=0o600)
                path.write_text(text)
            return Credentials.load(folder)
    except (KeyError, ValueError, AttributeError) as error:
        raise JobError(
            f"secret {secret} has no credentials under {CONTROLLER_KEY!r} "
            f"({type(error).__name__}: {error}): name the one that its workers were made with"
        ) from error


def encoded(text: str | bytes) -> str:
    """Gives a text as a Secret has it."""
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()
