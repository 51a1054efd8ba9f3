"""Taking workers into the job as hosts."""

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

__all__ = ["ask_until_taken", "attach", "attach_to_workers", "joined", "obituary"]

# Between two attempts: a worker that has just ended a job is free a moment later.
_PAUSE_S = 0.2
_ASK_LIMIT_S = 10.0


def attach(gateway: str) -> None:
    """Has this program reach the workers that it attaches to from now on through one of them.

    It is for a program that cannot reach the others itself, such as one outside the network of a
    cluster. The same as `gateway` of each `attach_to_workers`.

    Args:
        gateway: Where that worker listens, such as `tcp://login.example.org:26600`.

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
    spares: int = 0,
    hold_s: float = 0.0,
    beside: bool = False,
    worker_ids: Sequence[str] = (),
) -> HostMesh:
    """Takes workers into the job as its hosts; returns before they have answered.

    A worker that is not there yet, or still ends another job, is asked again for
    `attach_timeout_s`. Whoever waits for a host that could not be had gets `HostDied`, which says
    why.

    Args:
        workers: Where the workers listen, such as `tcp://node7:26600`; one host for each.
        credentials: Of the job, when the workers are not on this machine. One set for a program.
            If left out, the program uses those that all programs of its user share: see
            `Credentials.local`.
        name: The name of the dimension, `hosts` when left out.
        gateway: Where a worker listens that passes on what is sent to the others, which this
            program cannot reach itself; names of theirs are looked up there. It reads nothing of
            what it passes on, and may be one of `workers` or not.
        ca: Accepted for programs written for Monarch, where it must be `trust_all_connections`.
        spares: How many of the workers, the last ones, are kept aside to take the places of hosts
            that die.
        hold_s: When this program is lost, hold its processes there for as many seconds, for a
            successor that comes with `take_over`. Needs credentials. 0 ends them at once.
        beside: Whether the workers serve this program beside whatever they serve, now or later,
            and stay free for others: to look into hosts where a job runs. Each worker then
            listens at one more port.
        worker_ids: Take these very workers and none that have come in their places, by what
            `HostMesh.worker_ids` has said of them before. Each is asked once: one that is not
            there, or serves somebody else, is lost at once.

    Returns:
        A mesh of shape `{hosts: len(workers) - spares}`, in the order of `workers`.

    Raises:
        ValueError: An address is malformed or given twice, there is none, one is on another machine
            or to be held and there are no credentials, what is beside others is to be kept, or
            `worker_ids` has not one for each worker, none of them a spare.
        CredentialsError: The credentials have expired, or those of the user cannot be had.
    """
    # Not at the top, here and below: most programs never attach, and importing Mesh is to be light.
    from mesh_core._failover.journal_entries import HostsEntry
    from mesh_core._hosts.address import Address
    from mesh_core._meshes.mesh import HostMesh
    from mesh_core._security.credentials import Credentials, CredentialsError
    from mesh_core._security.job_credentials import set_credentials

    if ca not in (None, "trust_all_connections"):
        raise ValueError(f"ca {ca!r} is not known: leave it out")
    if isinstance(workers, str):
        raise ValueError(f"workers is one string, {workers!r}: give a list of addresses")
    addresses = [Address.parse_reachable(worker) for worker in workers]
    if not addresses:
        raise ValueError("no workers to attach to: give at least one address")
    if len(set(addresses)) < len(addresses):
        raise ValueError("a worker is given twice: each can be one host only")
    if not 0 <= spares < len(addresses):
        raise ValueError(
            f"{spares} spares of {len(addresses)} workers: at least one has to be a host"
        )
    current = runtime()
    way = current.gateway if gateway is None else Address.parse_reachable(gateway)
    called = addresses if way is None else [*addresses, way]
    afar = [address for address in called if not address.is_loopback]
    if afar and credentials is None:
        raise ValueError(
            f"{afar[0]} is not on this machine, and there are no credentials: give the job's, "
            "made by Credentials.create"
        )
    if worker_ids and (spares or len(worker_ids) != len(addresses)):
        raise ValueError(
            f"{len(worker_ids)} worker_ids for {len(addresses) - spares} hosts and {spares} "
            "spares: give one for each host, and no spares"
        )
    if beside and (spares or hold_s):
        raise ValueError(
            "a program that is served beside others keeps no workers: leave out spares and hold_s"
        )
    if hold_s < 0:
        raise ValueError(f"hold_s {hold_s} is less than 0: leave it out, or give seconds")
    if hold_s and credentials is None:
        raise ValueError(
            "hosts are held only for who can prove to be a successor: give the job's credentials, "
            "made by Credentials.create"
        )
    keys = (credentials or Credentials.local())._keys
    if not keys.is_local:
        try:
            set_credentials(current, keys)
        except ValueError as error:
            raise CredentialsError(str(error)) from None
    config = effective()
    count = len(addresses) - spares
    places = current.places.add(addresses[:count], way, keys, config, hold_s, is_beside=beside)
    for place, worker_id in zip(places, worker_ids, strict=False):
        place.worker_id = worker_id
    hosts = tuple(place.host for place in places)
    region = Region.row_major([name or "hosts"], [len(hosts)])
    if hold_s:
        current.start_journal().note_hosts(HostsEntry(hosts, region))
    for place in places:
        threading.Thread(
            target=_attach, args=(current, place), name=f"mesh-attach-{place.host}", daemon=True
        ).start()
    for address in addresses[count:]:
        current.places.spares.hold(address, way, keys, config, hold_s)
    return HostMesh(hosts, region, None)


def _attach(current: Runtime, place: Place) -> None:
    """Takes one worker in; who waits for it hears why where that cannot be."""
    try:
        limit_s = 0.0 if place.worker_id else place.config.attach_timeout_s
        why = ask_until_taken(current, place, limit_s)
    except Exception as error:
        why = f"{place.address} could not be asked: {error!r}"
    if why is not None and not current.is_over:
        current.engine.host_gone(place.host, obituary(current, str(place.address), why))


def ask_until_taken(current: Runtime, place: Place, limit_s: float) -> str | None:
    """Asks until the worker serves us or the time is over; says why it does not."""
    # Not at the top: most programs never attach, and importing Mesh is to be light.
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
    """Describes why the program and the process at the worker's address do not trust each other."""
    if not place.keys.is_local:
        return f"{place.address} cannot be reached: {error}"
    return (
        f"{place.address} is refused, because it has not proved to be a worker of user "
        f"{os.geteuid()} ({error}): if another user listens there, start the worker at another "
        "port; if the worker runs with another home folder, set MESH_HOME to one folder for both; "
        "if the worker has credentials, give those of its job"
    )


def _ask(current: Runtime, place: Place) -> tuple[Route, tuple[bool, bytes, bool]]:
    """Asks once: how the worker is reached, whether it serves us, what it says, and for good."""
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
            hold_s=place.hold_s,
            worker_id=place.worker_id,
        )
        route = Route.to_worker(address, place.gateway)
        answer = ask_worker(
            route.addresses, place.keys, order.encode(), _ASK_LIMIT_S, route.gateway
        )
        return route, answer

    if not place.is_beside:
        return ask(place.address, SERVE)
    route, answer = ask(place.address, BESIDE)
    is_taken, port, _ = answer
    return ask(Address(place.address.host, int(port)), SERVE) if is_taken else (route, answer)


def joined(current: Runtime, place: Place, route: Route, host_name: str) -> None:
    """A worker serves the job: listens for it, and tells it and the others of each other."""
    config = place.config
    silent = obituary(current, host_name, "nothing was heard from it for three heartbeats")
    unresponsive = obituary(current, host_name, _why_unresponsive(config.unresponsive_timeout_s))
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
    if current.journal is not None and place.hold_s:
        current.journal.joined(place)


def _why_unresponsive(timeout_s: float) -> str:
    return (
        "it is unresponsive: its machine acknowledges, its agent has not answered for "
        f"{timeout_s:g} s"
    )


def obituary(current: Runtime, host_name: str, why: str) -> bytes:
    """Says what those are told who wait for something on a host that is lost."""
    fields = {"host": host_name, "proc": None, "reason": why}
    return FailureDetail(current.engine.new_port(), HOST_DIED, fields, None, current.me).encode()
