"""Adding workers to the job as hosts."""

from __future__ import annotations

import os
import threading
import time

from mesh_core._configuration.config import effective
from mesh_core._core import Region, ask_worker
from mesh_core._hosts.route import Route
from mesh_core._program.runtime import runtime
from mesh_core._serialization.wire import HOST_DIED, proc_id
from mesh_core._supervision.failure import FailureDetail
from mesh_core._testing.mock import patches_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._hosts.places import Place
    from mesh_core._meshes.mesh import HostMesh
    from mesh_core._program.runtime import Runtime
    from mesh_core._security.credentials import Credentials

__all__ = ["ask_until_taken", "attach", "attach_to_workers", "exit_report", "joined"]

# The pause between two attempts: a worker that has just ended a job is available soon after.
_PAUSE_S = 0.2
_ASK_LIMIT_S = 10.0


def attach(gateway: str) -> None:
    """Set the gateway for all workers to which this program attaches from now on.

    A gateway is for a program that cannot reach the other workers itself, for example from outside
    the network of a cluster. The call has the same effect as `gateway` in each `attach_to_workers`.

    Args:
        gateway: The address of the worker that forwards connections, such as
            `tcp://login.example.org:26600`.

    Raises:
        ValueError: The address is malformed.
    """
    from mesh_core._hosts.address import Address

    runtime().gateway = Address.parse_reachable(gateway)


def attach_to_workers(
    workers: Sequence[str],
    *,
    credentials: Credentials | None = None,
    name: str | None = None,
    gateway: str | None = None,
    ca: str | None = None,
    standby: int = 0,
    orphan_grace_s: float = 0.0,
    observer: bool = False,
    worker_ids: Sequence[str] = (),
) -> HostMesh:
    """Add workers to the job as its hosts, and return before they have replied.

    If a worker is not running yet, or is still ending another job, the request is repeated for
    `attach_timeout_s`. If a host cannot be attached, calls that wait for it raise `HostDied` with
    the reason.

    Args:
        workers: The addresses of the workers, such as `tcp://node7:26600`; each becomes one host.
        credentials: The credentials of the job; required for workers on other machines. A program
            has only one set. Default: the credentials that all programs of the user share, see
            `Credentials.local`.
        name: The name of the dimension. Default: `hosts`.
        gateway: The address of a worker that forwards connections to the others, which this program
            cannot reach itself. It resolves their names, cannot read the forwarded data, and may be
            one of `workers` or not.
        ca: Accepted for programs written for Monarch, in which case it must be
            `trust_all_connections`.
        standby: The number of workers, counted from the end, that are reserved as standby workers
            to replace hosts that die.
        orphan_grace_s: The orphan grace period in seconds: how long the workers keep the processes
            of this program, after it is lost, for a successor that calls `take_over`. Requires
            credentials. With 0 the processes end immediately.
        observer: Whether to open an additional session on each worker, separate from the program
            that it serves now or later, and leave the worker available to others; for example to
            inspect the hosts of a running job. Each worker then listens on one more port.
        worker_ids: The ids of the only acceptable worker processes, from an earlier
            `HostMesh.worker_ids`. Each worker then gets a single request: a worker that is not
            running or serves another program is lost immediately.

    Returns:
        A mesh of shape `{hosts: len(workers) - standby}`, in the order of `workers`.

    Raises:
        ValueError: `workers` is empty, `standby` leaves no host, an address is malformed or occurs
            twice, credentials are missing for another machine or for `orphan_grace_s`, `observer`
            is combined with `standby` or `orphan_grace_s`, or `worker_ids` is combined with
            `standby` or has another length than `workers`.
        CredentialsError: The credentials have expired, or those of the user are not available.
    """
    # Imported here and below because most programs never attach, and importing Mesh must be cheap.
    from mesh_core._failover.journal_entries import HostsEntry
    from mesh_core._hosts.address import Address
    from mesh_core._meshes.mesh import HostMesh
    from mesh_core._security.credentials import Credentials, CredentialsError
    from mesh_core._security.job_credentials import set_credentials

    if ca not in (None, "trust_all_connections"):
        raise ValueError(f"ca {ca!r} is not known: leave it out")
    if isinstance(workers, str):
        raise ValueError(f"workers is a single string, {workers!r}: pass a list of addresses")
    addresses = [Address.parse_reachable(worker) for worker in workers]
    if not addresses:
        raise ValueError("no workers to attach to: give at least one address")
    if len(set(addresses)) < len(addresses):
        raise ValueError("a worker is listed twice: each one can be only one host")
    if not 0 <= standby < len(addresses):
        raise ValueError(
            f"standby={standby} of {len(addresses)} workers: at least one worker must be a host"
        )
    current = runtime()
    way = current.gateway if gateway is None else Address.parse_reachable(gateway)
    called = addresses if way is None else [*addresses, way]
    afar = [address for address in called if not address.is_loopback]
    if afar and credentials is None:
        raise ValueError(
            f"{afar[0]} is not on this machine, and there are no credentials: pass the job's, "
            "created by Credentials.create"
        )
    if worker_ids and (standby or len(worker_ids) != len(addresses)):
        raise ValueError(
            f"{len(worker_ids)} worker_ids for {len(addresses) - standby} hosts and {standby} "
            "standby workers: pass one for each host, and no standby workers"
        )
    if observer and (standby or orphan_grace_s):
        raise ValueError(
            "an additional session cannot reserve workers: leave out standby and orphan_grace_s"
        )
    if orphan_grace_s < 0:
        raise ValueError(
            f"orphan_grace_s {orphan_grace_s} is less than 0: omit it, or pass a number of seconds"
        )
    if orphan_grace_s and credentials is None:
        raise ValueError(
            "hosts are held only for a successor that has the job's credentials: pass those, "
            "created by Credentials.create"
        )
    keys = (credentials or Credentials.local())._keys
    if not keys.is_local:
        try:
            set_credentials(current, keys)
        except ValueError as error:
            raise CredentialsError(str(error)) from None
    config = effective()
    count = len(addresses) - standby
    places = current.places.add(
        addresses[:count], way, keys, config, orphan_grace_s, is_observer=observer
    )
    for place, worker_id in zip(places, worker_ids, strict=False):
        place.worker_id = worker_id
    hosts = tuple(place.host for place in places)
    region = Region.row_major([name or "hosts"], [len(hosts)])
    if orphan_grace_s:
        current.start_journal().note_hosts(HostsEntry(hosts, region))
    for place in places:
        threading.Thread(
            target=_attach, args=(current, place), name=f"mesh-attach-{place.host}", daemon=True
        ).start()
    for address in addresses[count:]:
        current.places.standby.hold(address, way, keys, config, orphan_grace_s)
    return HostMesh(hosts, region, None)


def _attach(current: Runtime, place: Place) -> None:
    """Attach one worker; if this fails, calls that wait for the host get the reason."""
    try:
        limit_s = 0.0 if place.worker_id else place.config.attach_timeout_s
        why = ask_until_taken(current, place, limit_s)
    except Exception as error:
        why = f"{place.address} could not be queried: {error!r}"
    if why is not None and not current.is_over:
        current.engine.host_gone(place.host, exit_report(current, str(place.address), why))


def ask_until_taken(current: Runtime, place: Place, limit_s: float) -> str | None:
    """Repeat the request until the worker accepts or the time is over; return why it did not."""
    # Imported here because most programs never attach, and importing Mesh must be cheap.
    from mesh_core._hosts.attach_request import Welcome

    until = time.monotonic() + limit_s
    while True:
        try:
            route, answer = _ask(current, place)
            is_taken, text, is_final = answer
        except PermissionError as error:
            is_taken, is_final, why = False, False, _refusal(place, error)
        except OSError as error:
            is_taken, is_final, why = False, False, f"{place.address} cannot be reached: {error}"
        else:
            why = f"the worker at {place.address} refused: {text.decode(errors='replace')}"
        if is_taken and not current.is_over:
            welcome = Welcome.decode(text)
            place.worker_id = welcome.worker_id
            joined(current, place, route, welcome.host_name)
            return None
        if is_final or current.is_over or time.monotonic() >= until:
            return why
        time.sleep(_PAUSE_S)


def _refusal(place: Place, error: PermissionError) -> str:
    """Describe why the program and the process at the worker's address do not trust each other."""
    if not place.keys.is_local:
        return f"{place.address} cannot be reached: {error}"
    return (
        f"{place.address} is refused, because it has not proved to be a worker of user "
        f"{os.geteuid()} ({error}): if another user listens there, start the worker at another "
        "port; if the worker runs with another home folder, set MESH_HOME to one folder for both; "
        "if the worker has credentials, give those of its job"
    )


def _ask(current: Runtime, place: Place) -> tuple[Route, tuple[bool, bytes, bool]]:
    """Send one request; return the route, whether it was accepted, the text, and if it is final."""
    from mesh_core._hosts.address import Address
    from mesh_core._hosts.attach_request import BESIDE, SERVE, AttachOrder

    identity = current.identity

    def ask(address: Address, verb: str) -> tuple[Route, tuple[bool, bytes, bool]]:
        order = AttachOrder.of_program(
            identity.job,
            identity.token,
            place.host,
            place.config,
            epoch=place.epoch,
            verb=verb,
            generation=current.generation,
            orphan_grace_s=place.orphan_grace_s,
            worker_id=place.worker_id,
        )
        route = Route.to_worker(address, place.gateway)
        answer = ask_worker(
            route.addresses, place.keys, order.encode(), _ASK_LIMIT_S, route.gateway
        )
        return route, answer

    if not place.is_observer:
        return ask(place.address, SERVE)
    route, answer = ask(place.address, BESIDE)
    is_taken, port, _ = answer
    return ask(Address(place.address.host, int(port)), SERVE) if is_taken else (route, answer)


def joined(current: Runtime, place: Place, route: Route, host_name: str) -> None:
    """Add a worker that serves the job: monitor its host, and exchange routes with other hosts."""
    config = place.config
    silent = exit_report(current, host_name, "nothing was received from it for three heartbeats")
    unresponsive = exit_report(current, host_name, _why_unresponsive(config.unresponsive_timeout_s))
    place.host_name = host_name
    if place.epoch:
        current.agent.do_host_back(None, place.host, place.epoch)
    current.engine.expect_host(
        place.host, config.heartbeat_s, config.unresponsive_timeout_s, silent, unresponsive
    )
    current.engine.set_route(place.host, route.addresses, route.gateway, place.route_keys)
    if patches := patches_here():
        current.tell_agent(proc_id(place.host, 0), "patch", patches)
    current.places.joined(place, route)
    if current.journal is not None and place.orphan_grace_s:
        current.journal.joined(place)


def _why_unresponsive(timeout_s: float) -> str:
    return (
        "it is unresponsive: its machine acknowledges data, but its agent has not replied for "
        f"{timeout_s:g} s"
    )


def exit_report(current: Runtime, host_name: str, why: str) -> bytes:
    """Return the encoded failure for callers that wait for something on a lost host."""
    fields = {"host": host_name, "proc": None, "reason": why}
    return FailureDetail(current.engine.new_port(), HOST_DIED, fields, None, current.me).encode()
