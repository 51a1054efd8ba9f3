"""The worker of one host, which reports its address and exits when it is no longer used."""

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

from mesh_core import ConfigError, run_worker
from mesh_jobs._atomic_files import write_json
from mesh_jobs._host.host import SERVES_JOB, ServedHost
from mesh_jobs._worker.control import ControlOptions, WorkerControl, control_service
from mesh_jobs._worker.credentials import secret_files, unpacked
from mesh_jobs._worker.lease import Lease
from mesh_jobs._worker.output_tee import STDERR, STDOUT, tee_output
from mesh_jobs._worker.subreaper import Subreaper
from mesh_jobs._worker.termination_flag import TerminationFlag

__all__ = ["WorkerOptions", "serve"]

_SERVES = "mesh worker serves tcp://"
# No packet is sent to this address: it only makes the system select the source address that it
# would use.
_ELSEWHERE = ("198.51.100.1", 9)


@dataclass(frozen=True)
class WorkerOptions:
    """The options of the worker; see `python -m mesh_jobs.worker --help`."""

    mesh: str
    rank: str
    secret: str | None
    report: str | None
    listen: str
    advertise: str | None
    ttl_s: float
    epoch: str
    allocation_id: str
    control_port: int = 0
    health_port: int | None = None
    leave_grace_s: float = 0.0


def serve(options: WorkerOptions) -> bool:
    """Serve this machine until the worker is terminated, or its lease expires.

    Returns:
        Whether the lease has expired.

    Raises:
        ConfigError: A referenced environment variable is not set.
        CredentialsError: The content is not a worker's secret.
        OSError: The address is in use, or a file cannot be read.
        ValueError: The address is invalid.
    """
    rank = _number(options.rank)
    report = None if options.report is None else Path(_of_rank(options.report, rank))
    host = ServedHost(
        socket.gethostname(), options.mesh, rank, _number(options.epoch), options.allocation_id
    )
    advertise = None if options.advertise is None else _given(options.advertise)
    listened = _listened(options.listen)
    wanted = ControlOptions(_host_part(listened), options.control_port, options.health_port)
    lease = Lease(options.ttl_s, end=lambda: os.kill(os.getpid(), signal.SIGTERM))
    # The secret is read before anything needs cleanup, because standard input may block.
    secret = None if options.secret is None else secret_files(_of_rank(options.secret, rank))
    Subreaper().start()
    with (
        TerminationFlag() as termination,
        _keys(secret) as keys,
        control_service(host, wanted, keys) as control,
    ):

        def on_line(line: str) -> str | None:
            host.record_line(line)
            if found := SERVES_JOB.fullmatch(line):
                lease.taken(int(found["session"]))
            elif line.startswith(_SERVES) and not host.address:
                # From here on, the worker loop handles signals; pass on one that arrived earlier.
                if termination.is_set:
                    termination.raise_again()
                    return None
                host.address = _reachable(line.split()[-1], options.listen, advertise)
                content = _worker_report(host, control)
                if report is not None:
                    write_json(report, content)
                lease.start()
                control.ready()
                return json.dumps(content)
            return None

        with (
            tee_output(on_line, STDOUT),
            tee_output(lambda line: host.record_line(line, True), STDERR),
        ):
            run_worker(listened, credentials=keys, leave_grace_s=options.leave_grace_s)
            if lease.is_over:
                print(f"mesh worker: unused for {options.ttl_s:g} s, exiting", flush=True)
    return lease.is_over


def _worker_report(host: ServedHost, control: WorkerControl) -> dict[str, Any]:
    """Return the report of a worker."""
    content: dict[str, Any] = {
        "pid": os.getpid(),
        "host": host.name,
        "mesh": host.mesh,
        "rank": host.rank,
        "allocation_id": host.allocation_id,
        "epoch": host.epoch,
        "started": host.started,
        "address": host.address,
    }
    name = host.address.partition("://")[2].rpartition(":")[0]
    if control.error:
        return {**content, "control": None, "control_error": control.error}
    content["control"] = f"grpcs://{name}:{control.port}"
    if control.health_port is not None:
        content["health"] = f"grpc://{name}:{control.health_port}"
    return content


@contextmanager
def _keys(secret: Mapping[str, str] | None) -> Iterator[Path | None]:
    """Yield the folder with the worker's credentials; None to use those of its user."""
    if secret is None:
        yield None
        return
    with unpacked(secret) as keys:
        yield keys


def _of_rank(path: str, rank: int) -> str:
    """Substitute the rank in the name of a file, but not in its folder, whose name users choose."""
    folder, name = os.path.split(path)
    return os.path.join(folder, name.replace("{rank}", str(rank)))


def _given(text: str) -> str:
    """Return the text, or the value of the variable if it has the form `env:NAME`."""
    if not text.startswith("env:"):
        return text
    name = text.removeprefix("env:")
    value = os.environ.get(name)
    if value is None:
        raise ConfigError(f"the environment variable {name} is not set: start the worker with it")
    return value


def _listened(address: str) -> str:
    """Return the address after substituting the variable of the form `tcp://env:NAME:PORT`."""
    scheme, _, rest = address.partition("://")
    if not rest.startswith("env:"):
        return address
    variable, _, port = rest.rpartition(":")
    name = _given(variable)
    return f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}"


def _host_part(address: str) -> str:
    """Return the host part of a listen address."""
    return address.partition("://")[2].rpartition(":")[0]


def _number(text: str) -> int:
    value = _given(text)
    if not value.isdecimal():
        raise ConfigError(f"{text} is {value!r}: give a whole number")
    return int(value)


def _reachable(address: str, listen: str, advertise: str | None) -> str:
    """Return the address under which others reach this machine."""
    port = address.rpartition(":")[2]
    if advertise is not None:
        name = f"[{advertise}]" if ":" in advertise else advertise
        return f"tcp://{name}:{port}"
    listened = listen.rpartition("://")[2]
    if not listened.startswith(("*:", "0.0.0.0:", "[::]:")):
        return address
    # The host name is not used: for many machines, and all containers, no other machine can resolve
    # it.
    return f"tcp://{_own_address()}:{port}"


def _own_address() -> str:
    with suppress(OSError):
        for *_, sockaddr in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET):
            if not str(sockaddr[0]).startswith("127."):
                return str(sockaddr[0])
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_ELSEWHERE)
        return str(probe.getsockname()[0])
    return "127.0.0.1"
