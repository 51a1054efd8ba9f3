"""Moves of hosts to other machines, as coordinated by the program.

1. A standby worker prepares to serve as the next epoch of the host, and starts the processes that
   will replace the processes of the host. The host continues to serve.
2. All other hosts hold their messages to the host, and the host completes the messages that it has
   received. If it does not become idle soon, because an endpoint runs for long or waits for a
   message that is held, the messages are released for a while, and this step is repeated.
3. The old machine hands over the state of its frozen actors. Until then, the move can be undone.
4. The new machine replaces the old one for all hosts, restores the actors, and receives the held
   messages.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from mesh_core._core import Targets
from mesh_core._errors import DrainFailed, HostDied
from mesh_core._hosts.address import Address
from mesh_core._hosts.joining import joined, request_until_taken
from mesh_core._hosts.packed_requests import pack_requests
from mesh_core._hosts.place import Place
from mesh_core._hosts.standby import join_limit_s
from mesh_core._hosts.state_transfer import StateTransfer
from mesh_core._meshes.host_requests import ask_host
from mesh_core._meshes.proc_mesh import this_proc
from mesh_core._serialization.wire import proc_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from mesh_core._hosts.joining import Taken
    from mesh_core._meshes.moved_state import ProcState
    from mesh_core._runtime.runtime import Runtime

__all__ = ["drain_host"]

# How long messages are held in the first attempt and at most, in seconds.
_HOLD_MIN_S = 0.1
_HOLD_MAX_S = 4.0


def drain_host(runtime: Runtime, host: int, worker: str | None, timeout_s: float) -> None:
    """Move a host to another machine; see `HostMesh.drain`.

    Args:
        runtime: The program.
        host: The number of the host.
        worker: The address of the worker on the other machine. Default: a standby worker.
        timeout_s: The maximum time until the host is at rest and its state is read, in seconds.

    Raises:
        DrainFailed: The host was not at rest in time, or something on it cannot move.
        HostDied: No machine is available, or one of the two has died.
        RuntimeError: The host is the host of the program, was shut down, or is shared by other
            sessions.
        ValueError: The address is malformed.
    """
    # A separate thread, because an interruption by Ctrl-C must not leave half a move.
    with ThreadPoolExecutor(1, "mesh-drain") as thread:
        thread.submit(_drain, runtime, host, worker, timeout_s).result()


def _drain(runtime: Runtime, host: int, worker: str | None, timeout_s: float) -> None:
    places = runtime.places
    place = places.find(host)
    if place is None:
        raise RuntimeError("the host of the program cannot be drained: the program runs on it")
    if place.is_observer:
        raise RuntimeError("the host cannot be drained: this job is an additional session on it")
    given = None if worker is None else Address.parse_reachable(worker)
    with place.replacing:
        places.require_living(place)
        machine = places.next_machine(place, given, may_return=False)
        if machine is None:
            raise HostDied(
                host=str(place.address),
                reason="it cannot be drained: no standby worker is left, give the address of one",
            )
        address, gateway, is_spare = machine
        place.tried_count += 1
        successor = Place(
            host,
            address,
            gateway,
            place.keys,
            place.config,
            place.orphan_grace_s,
            place.tried_count,
        )
        try:
            _move_to(runtime, place, successor, timeout_s, is_spare=is_spare)
        except BaseException:
            if is_spare and place.epoch != successor.epoch:
                places.standby.hold(
                    address,
                    gateway,
                    place.keys,
                    place.config,
                    place.orphan_grace_s,
                    busy_s=place.config.attach_timeout_s,
                )
            raise


def _move_to(
    runtime: Runtime, place: Place, successor: Place, timeout_s: float, *, is_spare: bool
) -> None:
    """Let a worker prepare to serve as the host, and move the host there."""
    config = place.config
    limit_s = join_limit_s(config, is_spare=is_spare)
    # The program does not communicate with it until the host has moved.
    lease_s = config.host_lease_s + timeout_s
    taken = request_until_taken(
        runtime,
        successor,
        limit_s,
        lease_s=lease_s,
        preload=_modules(runtime),
        processes=_processes(place.host),
    )
    if isinstance(taken, str):
        raise HostDied(host=str(successor.address), reason=f"it cannot take over a host ({taken})")
    try:
        _move(runtime, place, successor, taken, timeout_s)
    except BaseException:
        if place.epoch != successor.epoch:
            runtime.places.start_fence(successor, successor.epoch + 1, taken[0])
        raise


def _modules(runtime: Runtime) -> tuple[str, ...]:
    """Return the modules that processes of this job need."""
    requested = [name for one in runtime.start_requests.values() for name in one.preload]
    # Without other modules, the new machine at least prepares to fork processes.
    return tuple(dict.fromkeys(("mesh_core", *runtime.places.standby.preloaded, *requested)))


def _processes(host: int) -> bytes:
    """Return the processes of a host, as in `AttachRequest`."""
    return pack_requests(ask_host(this_proc(), host, "move_requests"))


def _move(runtime: Runtime, place: Place, successor: Place, taken: Taken, timeout_s: float) -> None:
    """Move the host as soon as it is idle."""
    until = time.monotonic() + timeout_s
    hold_s = _HOLD_MIN_S
    while True:
        # Other hosts may join or be replaced between two attempts.
        with runtime.places.changing:
            busy = _try_to_move(runtime, place, successor, taken, hold_s, until)
        if busy is None:
            return
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise DrainFailed(
                f"the host did not become idle within {timeout_s:g} s ({busy}) and continues to "
                "serve: drain it later, or with a longer timeout"
            )
        # Endpoints that wait for held messages complete now.
        time.sleep(min(hold_s, left_s))
        hold_s = min(2 * hold_s, _HOLD_MAX_S)


def _try_to_move(
    runtime: Runtime, place: Place, successor: Place, taken: Taken, hold_s: float, until: float
) -> str | None:
    """Move the host if it becomes idle within a time; otherwise return an activity on it."""
    assert runtime.host_agent is not None
    host = place.host
    others = [other for other in runtime.places.living() if other != host]
    try:
        runtime.host_agent.hold(host)
        _call_hosts(runtime, others, "hold_host", host)
        busy: str | None = ask_host(this_proc(), host, "move_rest", hold_s)
        if busy is not None:
            return busy
        states, transfer = _read_states(runtime, place, until)
        _call_hosts(runtime, others, "host_back", host, successor.epoch, True)
        runtime.agent.do_host_back(None, host, successor.epoch, True)
        place.take_machine_of(successor)
        route, welcome = taken
        joined(runtime, place, route, welcome.host_name)
        ask_host(this_proc(), host, "move_start", {state.slot: state.request for state in states})
        transfer.write()
        return None
    finally:
        _release(runtime, host, others)


def _read_states(
    runtime: Runtime, place: Place, until: float
) -> tuple[Sequence[ProcState], StateTransfer]:
    """Return the processes of a host at rest, and their state, with which they can continue."""
    host = place.host
    try:
        problem, states = ask_host(this_proc(), host, "move_hand_over")
        if problem is not None:
            raise DrainFailed(problem)
        transfer = StateTransfer(runtime, host, place.host_name, states)
        transfer.read(until)
    except DrainFailed as error:
        runtime.tell_agent(proc_id(host, 0), "move_cancel")
        raise DrainFailed(f"the host cannot be moved and continues to serve: {error}") from None
    except BaseException:
        runtime.tell_agent(proc_id(host, 0), "move_cancel")
        raise
    ask_host(this_proc(), host, "move_release_actors")
    return states, transfer


def _release(runtime: Runtime, host: int, others: Sequence[int]) -> None:
    runtime.engine.release_host(host)
    if others:
        runtime.tell_agents([proc_id(other, 0) for other in others], "release_host", host)


def _call_hosts(runtime: Runtime, hosts: Sequence[int], method: str, *args: Any) -> None:
    """Call the agents of hosts, and wait until each has replied or has died."""
    if hosts:
        targets = Targets([(proc_id(host, 0), rank) for rank, host in enumerate(hosts)])
        runtime.engine.wait(runtime.call_agents(targets, method, *args), None)
