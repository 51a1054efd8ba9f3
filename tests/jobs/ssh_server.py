"""A real sshd on a separate port, with temporary keys."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mesh_core.testing import wait_until

_UP_S = 10.0
_SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class SSHServer:
    """Accepts this user with one key, under any of the requested host names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The path of a socket has a length limit.
        self._control = Path(tempfile.mkdtemp(prefix="ssh-"), "control")
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
            # The tests must not depend on the startup files of the user's shell.
            f"MaxSessions 100\nSetEnv HOME={folder}\n"
        )
        (folder / "ssh_config").write_text(
            f"Host node*\n  HostName 127.0.0.1\n  Port {self._port}\n  User {getpass.getuser()}\n"
            f"  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
            f"  StrictHostKeyChecking no\n  UserKnownHostsFile {folder}/known_hosts\n"
            # One connection is shared by all commands, as frequent users configure it.
            f"  ControlMaster auto\n  ControlPath {self._control}\n  ControlPersist yes\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing() -> str | None:
        """Return a message about a program that is not installed, or None."""
        if _SSHD is None:
            return "sshd is not installed: apt-get install openssh-server"
        return None if shutil.which("ssh") else "ssh is not installed: install openssh-client"

    @property
    def arguments(self) -> list[str]:
        """The arguments with which ssh resolves `node1` and similar names to this server."""
        return ["-F", str(self._folder / "ssh_config")]

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
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
        """Stop the server; programs that were started through it continue."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_UP_S)
            self._process = None
        # Commands over an open connection would otherwise work without the server.
        subprocess.run(["ssh", *self.arguments, "-O", "exit", "node1"], capture_output=True)

    def close(self) -> None:
        """Stop the server permanently."""
        self.stop()
        folder = self._control.parent
        for control in folder.iterdir():
            command = ["ssh", *self.arguments, "-S", str(control), "-O", "exit", "node1"]
            subprocess.run(command, capture_output=True)
        # A process removes its socket only after it has confirmed the exit request.
        wait_until(lambda: not any(folder.iterdir()), _UP_S)
        folder.rmdir()

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Stop the server for the duration of the block."""
        self.stop()
        try:
            yield
        finally:
            self.start()
