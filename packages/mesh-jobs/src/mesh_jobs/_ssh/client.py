"""A client that sends requests to many machines concurrently over ssh."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from mesh_jobs._errors import JobError

__all__ = ["SSHClient", "SSHResponse", "real_name"]

# The exit status of ssh itself, for example when it cannot connect.
_NOT_CONNECTED = 255
_CONCURRENT_MAX = 32


@dataclass(frozen=True)
class SSHResponse:
    """The response of one machine.

    Attributes:
        value: The value; None if the request failed.
        problem: Why the request failed; empty if it succeeded.
        is_unreachable: Whether the machine may not have received the request.
    """

    value: Any = None
    problem: str = ""
    is_unreachable: bool = False


@dataclass(frozen=True)
class SSHClient:
    """Client that runs `_ssh.remote_command` on machines over ssh.

    Attributes:
        python: The Python interpreter on the machines, with mesh-jobs installed.
        args: More arguments for ssh.
        env: Environment variables for the interpreter.
        limit_s: The connection timeout for one machine, in seconds; a request may take twice as
            long.
    """

    python: str
    args: Sequence[str]
    env: Mapping[str, str]
    limit_s: float

    def command(self, host: str) -> list[str]:
        """Return the command for one machine, which reads its request from standard input."""
        ssh = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={int(self.limit_s)}"]
        return [*ssh, *self.args, host, "--", self.remote("-m", "mesh_jobs._ssh.remote_command")]

    def remote(self, *words: str) -> str:
        """Return a shell command line that runs Python on the machine."""
        env = [f"{name}={value}" for name, value in self.env.items()]
        return shlex.join([*(["env", *env] if env else []), self.python, *words])

    def request(self, requests: Mapping[str, Mapping[str, Any]]) -> dict[str, SSHResponse]:
        """Send a request to each machine concurrently; return the responses by machine."""
        if not requests:
            return {}
        with ThreadPoolExecutor(min(len(requests), _CONCURRENT_MAX)) as threads:
            answers = threads.map(self._request_one, requests, requests.values())
            return dict(zip(requests, answers, strict=True))

    def _request_one(self, host: str, request: Mapping[str, Any]) -> SSHResponse:
        try:
            done = subprocess.run(
                self.command(host),
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=self.limit_s * 2,
            )
        except subprocess.TimeoutExpired:
            return SSHResponse(None, f"ssh {host}: no response in {self.limit_s * 2:g} s", True)
        except OSError as error:
            return SSHResponse(None, f"ssh cannot be run: {error}", True)
        if done.returncode != 0:
            said = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
            is_unreachable = done.returncode == _NOT_CONNECTED
            return SSHResponse(None, f"ssh {host}: {said}", is_unreachable)
        try:
            # Login shells may print a banner, so only the last line is the response.
            return SSHResponse(json.loads(done.stdout.splitlines()[-1])["answer"])
        except (ValueError, LookupError, TypeError):
            return SSHResponse(None, f"ssh {host}: unexpected output {done.stdout[-200:]!r}")


@cache
def real_name(host: str, args: tuple[str, ...]) -> str:
    """Return the real host name of an alias, as `ssh -G` resolves it.

    Raises:
        JobError: ssh is not installed.
    """
    try:
        done = subprocess.run(["ssh", *args, "-G", host], capture_output=True, text=True)
    except OSError as error:
        raise JobError(f"ssh cannot be run here: {error}: install openssh-client") from error
    for line in done.stdout.splitlines():
        if line.startswith("hostname "):
            return line.split()[1]
    return host.rpartition("@")[2]
