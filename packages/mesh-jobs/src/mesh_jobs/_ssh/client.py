"""Asking machines something over ssh, many at a time."""

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

__all__ = ["SSHAnswer", "SSHCall", "real_name"]

# ssh ends with it when it could not connect: the machine was not asked.
_NOT_CONNECTED = 255
_AT_ONCE_MAX = 32


@dataclass(frozen=True)
class SSHAnswer:
    """What a machine said.

    Attributes:
        value: Its answer, None when there is none.
        problem: Why there is none; empty when there is.
        is_unreachable: Whether the machine was not even asked, as far as is known.
    """

    value: Any = None
    problem: str = ""
    is_unreachable: bool = False


@dataclass(frozen=True)
class SSHCall:
    """How machines are reached.

    Attributes:
        python: The Python there, with mesh-jobs installed.
        args: More arguments for ssh.
        env: What to set for that Python.
        limit_s: How long one machine may take to answer.
    """

    python: str
    args: Sequence[str]
    env: Mapping[str, str]
    limit_s: float

    def command(self, host: str) -> list[str]:
        """Gives the command that asks one machine; what it is asked goes to standard input."""
        ssh = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={int(self.limit_s)}"]
        return [*ssh, *self.args, host, "--", self.remote("-m", "mesh_jobs._ssh.remote_command")]

    def remote(self, *words: str) -> str:
        """Gives a command line of Python for a shell there."""
        env = [f"{name}={value}" for name, value in self.env.items()]
        return shlex.join([*(["env", *env] if env else []), self.python, *words])

    def ask(self, requests: Mapping[str, Mapping[str, Any]]) -> dict[str, SSHAnswer]:
        """Asks each machine its request, at the same time, and gives all answers."""
        if not requests:
            return {}
        with ThreadPoolExecutor(min(len(requests), _AT_ONCE_MAX)) as threads:
            answers = threads.map(self._ask_one, requests, requests.values())
            return dict(zip(requests, answers, strict=True))

    def _ask_one(self, host: str, request: Mapping[str, Any]) -> SSHAnswer:
        try:
            done = subprocess.run(
                self.command(host),
                input=json.dumps(request),
                capture_output=True,
                text=True,
                timeout=self.limit_s * 2,
            )
        except subprocess.TimeoutExpired:
            return SSHAnswer(None, f"ssh {host}: no answer in {self.limit_s * 2:g} s", True)
        except OSError as error:
            return SSHAnswer(None, f"ssh cannot be run: {error}", True)
        if done.returncode != 0:
            said = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
            is_unreachable = done.returncode == _NOT_CONNECTED
            return SSHAnswer(None, f"ssh {host}: {said}", is_unreachable)
        try:
            # Shells of some machines greet everybody: the answer is the last line.
            return SSHAnswer(json.loads(done.stdout.splitlines()[-1])["answer"])
        except (ValueError, LookupError, TypeError):
            return SSHAnswer(None, f"ssh {host}: it answered {done.stdout[-200:]!r}")


@cache
def real_name(host: str, args: tuple[str, ...]) -> str:
    """Gives the name or address that ssh calls a host by, whatever its configuration calls it.

    Raises:
        JobError: There is no ssh here.
    """
    try:
        done = subprocess.run(["ssh", *args, "-G", host], capture_output=True, text=True)
    except OSError as error:
        raise JobError(f"ssh cannot be run here: {error}: install openssh-client") from error
    for line in done.stdout.splitlines():
        if line.startswith("hostname "):
            return line.split()[1]
    return host.rpartition("@")[2]
