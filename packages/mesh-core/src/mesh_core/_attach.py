"""Taking workers into the job as hosts."""

from __future__ import annotations

import os
import sys
import threading
import time

from mesh_core._config import effective
from mesh_core._core import Region, ask_worker
from mesh_core._failure import FailureDetail
from mesh_core._runtime import runtime
from mesh_core._wire import HOST_DIED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._address import Address
    from mesh_core._config import Config
    from mesh_core._core import Keys
    from mesh_core._mesh import HostMesh
    from mesh_core._runtime import Runtime
    from mesh_core._trust import Credentials

__all__ = ["attach_to_workers"]

# Between two attempts: a worker that has just ended a job is free a moment later.
_PAUSE_S = 0.2
_ASK_LIMIT_S = 10.0


def attach_to_workers(
    workers: Sequence[str],
    *,
    credentials: Credentials | None = None,
    name: str | None = None,
    ca: str | None = None,
) -> HostMesh:
    """Takes workers into the job as its hosts; returns before they have answered.

    A worker that is not there yet, or still ends another job, is asked again for
    `attach_timeout_s`. Whoever waits for a host that could not be had gets `HostDied`, which says
    why.

    Args:
        workers: Where the workers listen, such as `tcp://node7:26600`; one host for each.
        credentials: Of the job, when the workers are not on this machine. One set for a program.
        name: The name of the dimension, `hosts` when left out.
        ca: Accepted for programs written for Monarch, where it must be `trust_all_connections`.

    Returns:
        A mesh of shape `{hosts: len(workers)}`, in the order of `workers`.

    Raises:
        ValueError: An address is malformed or given twice, there is none, or one is on another
            machine and there are no credentials.
        CredentialsError: The credentials have expired.
    """
    # Not at the top, here and below: most programs never attach, and importing Mesh is to be light.
    from mesh_core._address import Address
    from mesh_core._mesh import HostMesh

    if ca not in (None, "trust_all_connections"):
        raise ValueError(f"ca {ca!r} is not known: leave it out")
    if isinstance(workers, str):
        raise ValueError(f"workers is one string, {workers!r}: give a list of addresses")
    addresses = [Address.parse(worker) for worker in workers]
    if not addresses:
        raise ValueError("no workers to attach to: give at least one address")
    if len(set(addresses)) < len(addresses):
        raise ValueError("a worker is given twice: each can be one host only")
    afar = [address for address in addresses if not address.is_loopback]
    if afar and credentials is None:
        raise ValueError(
            f"{afar[0]} is not on this machine, and there are no credentials: give the job's, "
            "made by Credentials.create"
        )
    current = runtime()
    keys = None if credentials is None else credentials._keys
    if keys is not None:
        current.engine.set_trust(keys)
    config = effective()
    hosts = current.new_hosts(len(addresses))
    for host, address in zip(hosts, addresses, strict=True):
        threading.Thread(
            target=_attach,
            args=(current, config, host, address, keys),
            name=f"mesh-attach-{host}",
            daemon=True,
        ).start()
    return HostMesh(hosts, Region.row_major([name or "hosts"], [len(hosts)]), None)


def _attach(
    current: Runtime, config: Config, host: int, address: Address, keys: Keys | None
) -> None:
    """Takes one worker in; who waits for it hears why where that cannot be."""
    try:
        why = _ask_until_taken(current, config, host, address, keys)
    except Exception as error:
        why = f"{address} could not be asked: {error!r}"
    if why is not None and not current.is_over:
        current.engine.host_gone(host, _obituary(current, host, str(address), why))


def _ask_until_taken(
    current: Runtime, config: Config, host: int, address: Address, keys: Keys | None
) -> str | None:
    """Asks until the worker serves us or the time is over; says why it does not."""
    from mesh_core._attach_order import AttachOrder

    until = time.monotonic() + config.attach_timeout_s
    order = AttachOrder(
        current.identity.job,
        current.identity.token,
        host,
        f"{_user()}@{os.uname().nodename} (process {os.getpid()})",
        config.host_lease_s,
        config.as_mapping(),
        [os.path.abspath(folder) for folder in sys.path],
    )
    while True:
        try:
            routes = address.resolve()
            is_taken, text = ask_worker(routes, keys, order.encode(), _ASK_LIMIT_S)
        except OSError as error:
            is_taken, why = False, f"{address} cannot be reached: {error.strerror or error}"
        else:
            why = f"the worker at {address} refused: {text.decode(errors='replace')}"
        if is_taken and not current.is_over:
            _joined(current, host, routes, text.decode(), config.heartbeat_s)
            return None
        if current.is_over or time.monotonic() >= until:
            return why
        time.sleep(_PAUSE_S)


def _joined(
    current: Runtime, host: int, routes: Sequence[str], host_name: str, heartbeat_s: float
) -> None:
    silent = "nothing was heard from it for three heartbeats"
    current.engine.expect_host(host, heartbeat_s, _obituary(current, host, host_name, silent))
    current.engine.set_route(host, list(routes))
    current.attached(host, routes)


def _obituary(current: Runtime, host: int, host_name: str, why: str) -> bytes:
    fields = {"host": host_name, "proc": None, "reason": why}
    return FailureDetail(current.engine.new_port(), HOST_DIED, fields, None, current.me).encode()


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
