"""A package index on this machine, with the protocols of the public one."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.steps import run_quietly

_START_S_MAX = 30.0
_HOST = "127.0.0.1"


class IndexFailed(Exception):
    """The index does not start."""


@dataclass(frozen=True)
class LocalIndex:
    """An index that accepts uploads from this machine without a password."""

    address: str
    folder: Path

    @property
    def simple(self) -> str:
        """The address for installers."""
        return f"{self.address}/simple/"

    def upload(self, files: Sequence[Path]) -> None:
        """Upload files, as to the public index.

        Raises:
            subprocess.CalledProcessError: The index refused a file; its reason went to stderr.
        """
        command = [
            sys.executable,
            "-m",
            "twine",
            "upload",
            "--non-interactive",
            "--disable-progress-bar",
        ]
        command += ["--username", "local", "--password", "local", "--repository-url", self.address]
        run_quietly([*command, *map(str, files)])


@contextmanager
def local_index(folder: Path) -> Iterator[LocalIndex]:
    """Serve an index until the block ends.

    Args:
        folder: The folder in which the index stores the files.

    Raises:
        IndexFailed: The server has exited, or does not respond.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port = _free_port()
    command = [sys.executable, "-m", "pypiserver", "run", "--port", str(port), "--interface", _HOST]
    # Every user of this machine may upload: the files are only for a trial.
    command += ["--passwords", ".", "--authenticate", ".", "--disable-fallback", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        address = f"http://{_HOST}:{port}"
        _wait_until_it_responds(server, address)
        yield LocalIndex(address, folder)
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((_HOST, 0))
        port: int = one.getsockname()[1]
        return port


def _wait_until_it_responds(server: subprocess.Popen[str], address: str) -> None:
    deadline = time.monotonic() + _START_S_MAX
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise IndexFailed(f"the index has exited: {server.communicate()[1][-2000:]}")
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise IndexFailed(f"the index does not respond within {_START_S_MAX:g} s")
