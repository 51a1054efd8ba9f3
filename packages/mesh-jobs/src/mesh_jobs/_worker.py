"""The worker of one host: it reports where it listens, and ends when nobody wants it."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mesh_core import ConfigError, run_worker_loop_forever
from mesh_jobs._files import write_json
from mesh_jobs._lease import Lease
from mesh_jobs._overheard import overheard
from mesh_jobs._worker_keys import unpacked

__all__ = ["WorkerOptions", "serve"]

_SERVES = "mesh worker serves tcp://"
_SERVES_JOB = "mesh worker serves a job of "
# No such address is ever called: the system is asked which of its own it would call from.
_ELSEWHERE = ("198.51.100.1", 9)


@dataclass(frozen=True)
class WorkerOptions:
    """What the worker is told; see `python -m mesh_jobs.worker --help`."""

    mesh: str
    rank: str
    secret: str
    report: str | None
    listen: str
    advertise: str | None
    ttl_s: float
    epoch: str
    order: str


def serve(options: WorkerOptions) -> None:
    """Serves this machine until it is told to end, or was not used for a while.

    Raises:
        ConfigError: A variable that was to be read is not there.
        CredentialsError: The secret is none.
        OSError: The address is taken, or a file cannot be read.
        ValueError: The address is none.
    """
    rank = _number(options.rank)
    report = None if options.report is None else Path(options.report.format(rank=rank))
    told = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "mesh": options.mesh,
        "rank": rank,
        "order": options.order,
        "epoch": _number(options.epoch),
        "started": time.time(),
    }
    advertise = None if options.advertise is None else _given(options.advertise)
    lease = Lease(options.ttl_s, end=lambda: os.kill(os.getpid(), signal.SIGTERM))

    def heard(line: str) -> str | None:
        if line.startswith(_SERVES_JOB):
            lease.taken()
        elif line.startswith(_SERVES) and "address" not in told:
            told["address"] = _reachable(line.split()[-1], options.listen, advertise)
            if report is not None:
                write_json(report, told)
            lease.start()
            return json.dumps(told)
        return None

    with unpacked(options.secret.format(rank=rank)) as keys, overheard(heard):
        run_worker_loop_forever(options.listen, credentials=keys)
        if lease.is_over:
            print(f"mesh worker: no program came for {options.ttl_s:g} s, it ends", flush=True)


def _given(text: str) -> str:
    """Gives the text, or where it is `env:NAME` what that variable holds."""
    if not text.startswith("env:"):
        return text
    name = text.removeprefix("env:")
    value = os.environ.get(name)
    if value is None:
        raise ConfigError(f"the variable {name} is not set here: start the worker with it")
    return value


def _number(text: str) -> int:
    value = _given(text)
    if not value.isdecimal():
        raise ConfigError(f"{text} is {value!r}: give a whole number")
    return int(value)


def _reachable(address: str, listen: str, advertise: str | None) -> str:
    """Gives the address under which others find this machine."""
    port = address.rpartition(":")[2]
    if advertise is not None:
        name = f"[{advertise}]" if ":" in advertise else advertise
        return f"tcp://{name}:{port}"
    asked = listen.rpartition("://")[2]
    if not asked.startswith(("*:", "0.0.0.0:", "[::]:")):
        return address
    # Not its name: many a machine, and every container, knows its own name alone.
    return f"tcp://{_own_address()}:{port}"


def _own_address() -> str:
    with suppress(OSError):
        for *_, sockaddr in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET):
            if not str(sockaddr[0]).startswith("127."):
                return str(sockaddr[0])
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(_ELSEWHERE)
        return str(asking.getsockname()[0])
    return "127.0.0.1"
