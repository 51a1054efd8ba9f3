"""Credentials as the contents of a Kubernetes Secret."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mesh_core import Credentials
from mesh_jobs._errors import JobError

__all__ = ["CONTROLLER_KEY", "encoded", "packed", "unpacked"]

#: The key of the controller credentials in a Secret.
CONTROLLER_KEY = "controller"


def packed(credentials: Credentials) -> str:
    """Serialize credentials to one string, which must be kept secret."""
    with tempfile.TemporaryDirectory(prefix=".mesh-keys-") as made:
        folder = Path(made, "keys")
        credentials.save(folder)
        return json.dumps({one.name: one.read_text() for one in folder.iterdir()})


def unpacked(secret: str, contents: Mapping[str, str]) -> Credentials:
    """Load the controller credentials from a Secret.

    Args:
        secret: The name of the Secret.
        contents: The contents of the Secret by key, in Base64.

    Raises:
        JobError: The Secret has no valid controller credentials.
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
            f"secret {secret} has no credentials under {CONTROLLER_KEY!r} ({type(error).__name__}: "
            f"{error}): name the secret that its workers were created with"
        ) from error


def encoded(text: str | bytes) -> str:
    """Encode a text in Base64, as a Secret stores it."""
    return base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()
