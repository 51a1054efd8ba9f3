"""The worker of one host: it reports where it listens, and ends when nobody wants it."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mesh_core import ConfigError, run_worker_loop_forever
from mesh_jobs._atomic_files import write_json
from mesh_jobs._host.host import SERVES_JOB, ServedHost
from mesh_jobs._worker.control import ControlOptions, WorkerControl, control_beside
from mesh_jobs._worker.credentials import secret_files, unpacked
from mesh_jobs._worker.lease import Lease
from mesh_jobs._worker.output_tee import STDERR, STDOUT, tee_output
from mesh_jobs._worker.subreaper import Subreaper
from mesh_jobs._worker.termination_flag import TerminationFlag

__all__ = ["WorkerOptions", "serve"]

_SERVES = "mesh worker serves tcp://"
# No such address is ever called: the system is asked which of its own it would call from.
_ELSEWHERE = ("198.51.100.1", 9)


@dataclass(frozen=True)
class WorkerOptions:
    """What the worker is told; see `python -m mesh_jobs.worker --help`."""

    mesh: str
    rank: str
    secret: str | None
    report: str | None
    listen: str
    advertise: str | None
    ttl_s: float
    epoch: str
    order: str
    control_port: int = 0
    health_port: int | None = None
    leave_grace_s: float = 0.0


def serve(options: WorkerOptions) -> bool:
    """Serves this machine until it is told to end, or was not used for a while.

    Returns whether it was not used.

    Raises:
        ConfigError: A variable that was to be read is not there.
        CredentialsError: The secret is none.
        OSError: The address is taken, or a file cannot be read.
        ValueError: The address is none.
    """
    rank = _number(options.rank)
    report = None if options.report is None else Path(_of_rank(options.report, rank))
    host = ServedHost(
        socket.gethostname(), options.mesh, rank, _number(options.epoch), options.order
    )
    advertise = None if options.advertise is None else _given(options.advertise)
    listened = _listened(options.listen)
    wanted = ControlOptions(_host_part(listened), options.control_port, options.health_port)
    lease = Lease(options.ttl_s, end=lambda: os.kill(os.getpid(), signal.SIGTERM))
    # Before anything is there that must not be left: it may wait for its standard input.
    secret = None if options.secret is None else secret_files(_of_rank(options.secret, rank))
    Subreaper().start()
    with (
        TerminationFlag() as termination,
        _keys(secret) as keys,
        control_beside(host, wanted, keys) as control,
    ):

        def on_line(line: str) -> str | None:
            host.record_line(line)
            if found := SERVES_JOB.fullmatch(line):
                lease.taken(int(found["session"]))
            elif line.startswith(_SERVES) and not host.address:
                # From now on the loop handles it itself: it is told what came before that.
                if termination.is_set:
                    termination.raise_again()
                    return None
                host.address = _reachable(line.split()[-1], options.listen, advertise)
                told = _told(host, control)
                if report is not None:
                    write_json(report, told)
                lease.start()
                control.ready()
                return json.dumps(told)
            return None

        with (
            tee_output(on_line, STDOUT),
            tee_output(lambda line: host.record_line(line, True), STDERR),
        ):
            run_worker_loop_forever(listened, credentials=keys, leave_grace_s=options.leave_grace_s)
            if lease.is_over:
                print(f"mesh worker: no program came for {options.ttl_s:g} s, it ends", flush=True)
    return lease.is_over


def _told(host: ServedHost, control: WorkerControl) -> dict[str, Any]:
    """Gives the report of a worker."""
    told: dict[str, Any] = {
        "pid": os.getpid(),
        "host": host.name,
        "mesh": host.mesh,
        "rank": host.rank,
        "order": host.order,
        "epoch": host.epoch,
        "started": host.started,
        "address": host.address,
    }
    name = host.address.partition("://")[2].rpartition(":")[0]
    if control.why_none:
        return {**told, "control": None, "why_no_control": control.why_none}
    told["control"] = f"grpcs://{name}:{control.port}"
    if control.health_port is not None:
        told["health"] = f"grpc://{name}:{control.health_port}"
    return told


@contextmanager
def _keys(secret: Mapping[str, str] | None) -> Iterator[Path | None]:
    """Gives the folder with the worker's credentials; None for those of its user."""
    if secret is None:
        yield None
        return
    with unpacked(secret) as keys:
        yield keys


def _of_rank(path: str, rank: int) -> str:
    """Puts the rank into the name of a file; folders have any name that users gave them."""
    folder, name = os.path.split(path)
    return os.path.join(folder, name.replace("{rank}", str(rank)))


def _given(text: str) -> str:
    """Gives the text, or where it is `env:NAME` what that variable holds."""
    if not text.startswith("env:"):
        return text
    name = text.removeprefix("env:")
    value = os.environ.get(name)
    if value is None:
        raise ConfigError(f"the variable {name} is not set here: start the worker with it")
    return value


def _listened(address: str) -> str:
    """Gives the address, with the variable read where it has the form `tcp://env:NAME:PORT`."""
    scheme, _, rest = address.partition("://")
    if not rest.startswith("env:"):
        return address
    variable, _, port = rest.rpartition(":")
    name = _given(variable)
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"


def _host_part(address: str) -> str:
    """Gives the name or address of a place to listen at."""
    return address.partition("://")[2].rpartition(":")[0]


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
