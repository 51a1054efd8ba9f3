"""Requests to a worker to serve as a host of the job, and the steps after it accepts."""

from __future__ import annotations

import os
import time

from mesh_core._core import request_attach
from mesh_core._hosts.address import Address
from mesh_core._hosts.attach_request import BESIDE, SERVE, AttachReply, AttachRequest
from mesh_core._hosts.route import Route
from mesh_core._logging.python_logging import warn
from mesh_core._meshes.patches import patches_here
from mesh_core._serialization.wire import proc_id
from mesh_core._supervision.failure import host_exit_report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core._hosts.place import Place
    from mesh_core._runtime.runtime import Runtime

__all__ = ["Taken", "ask_until_taken", "joined", "request_until_taken"]

Taken = tuple[Route, AttachReply]
"""The route to a worker that serves the job, and its reply."""

# The pause between two attempts: a worker that has just ended a job is available soon after.
_PAUSE_S = 0.2
_ASK_LIMIT_S = 10.0
# The differences of versions that were reported.
_warned: set[str] = set()


def ask_until_taken(current: Runtime, place: Place, limit_s: float) -> str | None:
    """Add a worker to the job as soon as it accepts; return why it did not within the time."""
    taken = request_until_taken(current, place, limit_s)
    if isinstance(taken, str):
        return taken
    route, welcome = taken
    joined(current, place, route, welcome.host_name)
    return None


def request_until_taken(
    current: Runtime,
    place: Place,
    limit_s: float,
    *,
    lease_s: float | None = None,
    preload: Sequence[str] = (),
    processes: bytes = b"",
) -> Taken | str:
    """Repeat the request until the worker accepts or the time is over; return why it did not.

    Args:
        current: The program.
        place: The host as which the worker should serve.
        limit_s: The maximum time, in seconds.
        lease_s: How long the worker waits for the first sign of life, in seconds. Default: the
            lease of its host.
        preload: The modules that the worker imports before it replies.
        processes: The processes that the worker starts before it replies, as in `AttachRequest`.
    """
    until = time.monotonic() + limit_s
    while True:
        try:
            route, answer = _ask(current, place, lease_s, preload, processes)
            is_taken, text, is_final = answer
        except PermissionError as error:
            is_taken, is_final, why = False, False, _refusal(place, error)
        except OSError as error:
            is_taken, is_final, why = False, False, f"{place.address} cannot be reached: {error}"
        else:
            why = f"the worker at {place.address} refused: {text.decode(errors='replace')}"
        if is_taken and not current.is_over:
            welcome = AttachReply.decode(text)
            place.worker_id = welcome.worker_id
            _warn_of(welcome)
            return route, welcome
        if is_final or current.is_over or time.monotonic() >= until:
            return why
        place.problem = why
        time.sleep(_PAUSE_S)


def _warn_of(welcome: AttachReply) -> None:
    """Warn of packages that a worker has in another version, once for each difference."""
    for difference in welcome.differences:
        if difference not in _warned:
            _warned.add(difference)
            warn(
                f"host {welcome.host_name} has {difference}, the version of this program: what one "
                "of them has pickled may not be readable by the other"
            )


def _refusal(place: Place, error: PermissionError) -> str:
    """Describe why the program and the process at the worker's address cannot authenticate."""
    if not place.keys.is_local:
        return f"{place.address} cannot be reached: {error}"
    return (
        f"{place.address} is refused, because it has not proved to be a worker of user "
        f"{os.geteuid()} ({error}): if another user listens there, start the worker at another "
        "port; if the worker runs with another home folder, set MESH_HOME to one folder for both; "
        "if the worker has credentials, give those of its job"
    )


def _ask(
    current: Runtime,
    place: Place,
    lease_s: float | None,
    preload: Sequence[str],
    processes: bytes,
) -> tuple[Route, tuple[bool, bytes, bool]]:
    """Send one request; return the route, whether it was accepted, the text, and if it is final."""
    identity = current.identity

    def ask(address: Address, verb: str) -> tuple[Route, tuple[bool, bytes, bool]]:
        request = AttachRequest.of_program(
            identity.job,
            identity.token,
            place.host,
            place.config,
            epoch=place.epoch,
            verb=verb,
            generation=current.generation,
            orphan_grace_s=place.orphan_grace_s,
            worker_id=place.worker_id,
            lease_s=lease_s,
            preload=preload,
            processes=processes,
        )
        route = Route.to_worker(address, place.gateway)
        answer = request_attach(
            route.addresses, place.keys, request.encode(), _ASK_LIMIT_S, route.gateway
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
    silent = host_exit_report(
        current, host_name, "nothing was received from it for three heartbeats"
    )
    unresponsive = host_exit_report(
        current, host_name, _why_unresponsive(config.unresponsive_timeout_s)
    )
    place.host_name = host_name
    if place.epoch:
        current.agent.do_host_back(None, place.host, place.epoch)
    current.engine.monitor_host(
        place.host, config.heartbeat_s, config.unresponsive_timeout_s, silent, unresponsive
    )
    current.engine.set_route(place.host, route.addresses, route.gateway, place.route_keys)
    if patches := patches_here():
        current.tell_agent(proc_id(place.host, 0), "patch", patches)
    if place.epoch and (modules := current.places.standby.preloaded):
        # Its template has imported them, and is used only if processes need all of them.
        current.tell_agent(proc_id(place.host, 0), "preload", modules)
    current.places.joined(place, route)
    if current.journal is not None and place.orphan_grace_s:
        current.journal.joined(place)


def _why_unresponsive(timeout_s: float) -> str:
    return (
        "it is unresponsive: its machine acknowledges data, but its agent has not replied for "
        f"{timeout_s:g} s"
    )
