"""A certificate for a server on this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate and its key into a folder, and return their paths."""
    certificate, key = folder / "ca.crt", folder / "ca.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=stand-in", "-keyout", str(key)),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key
