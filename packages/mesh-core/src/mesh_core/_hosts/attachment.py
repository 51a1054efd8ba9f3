"""Adding workers to the job: checks of the request, and one thread for each worker."""

from __future__ import annotations

import threading

from mesh_core._configuration.config import effective
from mesh_core._core import Region
from mesh_core._hosts.address import Address
from mesh_core._hosts.joining import ask_until_taken
from mesh_core._hosts.journal import start_journal
from mesh_core._hosts.journal_entries import HostsEntry
from mesh_core._logging.python_logging import warn
from mesh_core._meshes.host_mesh import HostMesh
from mesh_core._runtime.job_credentials import set_credentials
from mesh_core._runtime.runtime import runtime
from mesh_core._security.credentials import Credentials
from mesh_core._security.errors import CredentialsError
from mesh_core._supervision.failure import host_exit_report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._hosts.place import Place
    from mesh_core._runtime.runtime import Runtime

__all__ = ["add_standby_workers", "attach_workers", "set_gateway"]

# When the warning names the hosts that have not joined, and the maximum number of names.
_REPORT_AFTER_S = 2.0
_REPORTED_MAX = 8


def set_gateway(gateway: str) -> None:
    """Set the gateway for all later attachments; see `attach`."""
    runtime().gateway = Address.parse_reachable(gateway)


def attach_workers(
    workers: Sequence[str],
    *,
    credentials: Credentials | None,
    name: str | None,
    gateway: str | None,
    standby: int,
    orphan_grace_s: float,
    observer: bool,
    worker_ids: Sequence[str],
) -> HostMesh:
    """Add workers to the job as its hosts; see `attach_to_workers`."""
    addresses = _parse_all(workers)
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
        start_journal(current).note_hosts(HostsEntry(hosts, region))
    for place in places:
        threading.Thread(
            target=_attach, args=(current, place), name=f"mesh-attach-{place.host}", daemon=True
        ).start()
    if not worker_ids and config.attach_timeout_s > _REPORT_AFTER_S:
        report = threading.Timer(_REPORT_AFTER_S, _report_missing, (current, places))
        report.daemon = True
        report.start()
    for address in addresses[count:]:
        current.places.standby.hold(address, way, keys, config, orphan_grace_s)
    return HostMesh(hosts, region, None)


def add_standby_workers(hosts: HostMesh, workers: Sequence[str] | HostMesh) -> None:
    """Reserve more workers as standby workers; see `mesh_core.add_standby_workers`."""
    places = runtime().places
    served = _attached_places(hosts)
    like = served[0]
    if isinstance(workers, HostMesh):
        released = _attached_places(workers)
        if common := [place for place in released if place in served]:
            raise ValueError(
                f"{common[0].address} is one of the hosts that standby workers should replace: "
                "pass other hosts"
            )
        addresses = [place.address for place in released]
        workers.detach().get()
    else:
        addresses = _parse_all(workers)
    known = places.addresses_in_use()
    for address in addresses:
        if address in known:
            raise ValueError(f"{address} is a host or a standby worker already")
        known.add(address)
    for address in addresses:
        places.standby.hold(
            address,
            like.gateway,
            like.keys,
            like.config,
            like.orphan_grace_s,
            # A machine that has just left a job may still be ending its session.
            busy_s=like.config.attach_timeout_s,
        )


def _attached_places(hosts: HostMesh) -> list[Place]:
    """Return the places of hosts that this program has attached."""
    found = [runtime().places.find(hosts._hosts[rank]) for rank in hosts._region]
    places = [place for place in found if place is not None]
    if len(places) < len(found):
        raise ValueError(f"{hosts!r} was not attached by this program: pass its attached hosts")
    return places


def _parse_all(workers: Sequence[str]) -> list[Address]:
    if isinstance(workers, str):
        raise ValueError(f"workers is a single string, {workers!r}: pass a list of addresses")
    return [Address.parse_reachable(worker) for worker in workers]


def _report_missing(current: Runtime, places: Sequence[Place]) -> None:
    """Name the hosts that have not joined yet, in a warning."""
    missing = [one for one in places if one.route is None and one.exit_report is None]
    if not missing or current.is_over:
        return
    left_s = missing[0].config.attach_timeout_s - _REPORT_AFTER_S
    lines = [f"  {one.problem or f'{one.address} has not replied'}" for one in missing]
    if len(lines) > _REPORTED_MAX:
        lines[_REPORTED_MAX:] = [f"  and {len(lines) - _REPORTED_MAX} more"]
    warn(
        f"mesh: still waiting for {len(missing)} of {len(places)} hosts, for up to {left_s:g} s "
        "more (attach_timeout_s):\n" + "\n".join(lines)
    )


def _attach(current: Runtime, place: Place) -> None:
    """Attach one worker; if this fails, calls that wait for the host get the reason."""
    try:
        limit_s = 0.0 if place.worker_id else place.config.attach_timeout_s
        why = ask_until_taken(current, place, limit_s)
    except Exception as error:
        why = f"{place.address} could not be queried: {error!r}"
    if why is not None and not current.is_over:
        current.engine.declare_host_dead(
            place.host, host_exit_report(current, str(place.address), why)
        )
