"""Files with the address of a cluster and the credentials of a user."""

from __future__ import annotations

import base64
import json
from pathlib import Path


def write(path: Path, server: str, authority: Path | bytes, token: str) -> None:
    """Write a kubeconfig in JSON, which is valid YAML."""
    raw = authority if isinstance(authority, bytes) else authority.read_bytes()
    cluster = {
        "server": server,
        "certificate-authority-data": base64.b64encode(raw).decode(),
        "tls-server-name": "127.0.0.1",
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))
