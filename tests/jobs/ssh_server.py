"""A real sshd on a port of its own, with keys that are thrown away."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mesh_core.testing import wait_until

_UP_S = 10.0
_SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class SSHServer:
    """Lets this user in, by one key, under as many host names as are asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as found:
            self._port: int = found.getsockname()[1]
        for name in ("host_key", "user_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
            subprocess.run(command, check=True)
        (folder / "authorized_keys").write_text((folder / "user_key.pub").read_text())
        (folder / "sshd_config").write_text(
            f"ListenAddress 127.0.0.1\nPort {self._port}\nHostKey {folder}/host_key\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nPidFile none\nStrictModes no\n"
            "UsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\nMaxStartups 100\n"
        )
        (folder / "ssh_config").write_text(
            f"Host node*\n  HostName 127.0.0.1\n  Port {self._port}\n  User {getpass.getuser()}\n"
            f"  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
            f"  StrictHostKeyChecking no\n  UserKnownHostsFile {folder}/known_hosts\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing() -> str | None:
        """Says which program is not installed here."""
        if _SSHD is None:
            return "sshd is not installed: apt-get install openssh-server"
        return None if shutil.which("ssh") else "ssh is not installed: install openssh-client"

    @property
    def arguments(self) -> list[str]:
        """What ssh has to be told: `node1` and all that begin like it are this server."""
        return ["-F", str(self._folder / "ssh_config")]

    def start(self) -> None:
        """Starts it, and waits until it answers."""
        assert _SSHD is not None
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        log = str(self._folder / "sshd.log")
        command = [_SSHD, "-D", "-f", str(self._folder / "sshd_config"), "-E", log]
        self._process = subprocess.Popen(command)
        wait_until(lambda: self._answers(Path(log)), _UP_S)

    def _answers(self, log: Path) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, log.read_text()
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """Ends it; what was started over it goes on."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_UP_S)
            self._process = None

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Has it not answer meanwhile."""
        self.stop()
        try:
            yield
        finally:
            self.start()
