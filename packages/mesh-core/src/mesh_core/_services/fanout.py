"""Calls of all replicas of a service."""

from __future__ import annotations

from typing import Any

from mesh_core._calls.coroutine_future import _TaskFuture
from mesh_core._calls.event_loop import loop_thread
from mesh_core._core import Full, Region
from mesh_core._errors import MailboxFull, MeshError, MeshStopped, join_failures
from mesh_core._services.call import refuse_to_block
from mesh_core._services.replica_state import WholeReplicaFuture
from mesh_core._services.view import DRAINED
from mesh_core._shapes.shape import Extent, Point
from mesh_core._shapes.value_mesh import ValueMesh

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._services.call import ServiceCall
    from mesh_core._services.replica_state import Place, ReplicaFuture
    from mesh_core._services.router import Router

__all__ = ["broadcast", "fan_out"]

_REPLICAS = "replicas"


class FanoutFuture(_TaskFuture[ValueMesh[Any]]):
    """The replies of all replicas."""

    __slots__ = ("_name",)

    def __init__(self, name: str, coroutine: Any) -> None:
        super().__init__(loop_thread(), coroutine)
        self._name = name

    def _wait(self, timeout: float | None) -> None:
        refuse_to_block(self._name)
        super()._wait(timeout)


def fan_out(
    router: Router,
    request: ServiceCall,
    kind: type[ReplicaFuture[Any]],
    *,
    return_exceptions: bool,
) -> FanoutFuture:
    """Call every replica that accepts calls, and return their replies by replica.

    Known replicas get the call immediately, before any later call of this caller. Other replicas
    get it as soon as this process discovers them.
    """
    router.awake()
    was_stale = router.is_stale
    sent: dict[int, ReplicaFuture[Any]] = {}
    for place in router.open_places():
        sent[place.id] = _send(router, request, place, kind)
    request.keep()
    gathered = _gather(router, request, sent, kind, return_exceptions, was_stale)
    return FanoutFuture(request.name, gathered)


def _send(
    router: Router, request: ServiceCall, place: Place, kind: type[ReplicaFuture[Any]]
) -> ReplicaFuture[Any]:
    router.add_call(place)
    try:
        return request.send_to(place, router, kind)
    except BaseException as error:
        router.drop_call(place)
        if isinstance(error, Full):
            raise MailboxFull(place.mesh._window, place.mesh._name) from None
        raise


async def _gather(
    router: Router,
    request: ServiceCall,
    sent: dict[int, ReplicaFuture[Any]],
    kind: type[ReplicaFuture[Any]],
    return_exceptions: bool,
    was_stale: bool,
) -> ValueMesh[Any]:
    await router.exchange()
    # Replicas that were gone before the call are not part of the result.
    gone = sent.keys() - router.places.keys() if was_stale else set()
    for id in gone:
        del sent[id]
    while True:
        for place in router.open_places():
            if place.id not in sent:
                sent[place.id] = _send(router, request, place, kind)
        if sent:
            break
        # No replica has started yet.
        await router.exchange(is_patient=True)
    for future in sent.values():
        await future._settled()
    if any(isinstance(future.exception(), MeshStopped) for future in sent.values()):
        # Replicas that were drained during the call are not part of the result.
        await router.exchange()
        for id, future in list(sent.items()):
            is_stopped = isinstance(future.exception(), MeshStopped)
            if is_stopped and router.retired.get(id) == DRAINED and len(sent) > 1:
                del sent[id]
    return _joined([sent[id] for id in sorted(sent)], kind, return_exceptions)


def _joined(
    parts: list[ReplicaFuture[Any]], kind: type[ReplicaFuture[Any]], return_exceptions: bool
) -> ValueMesh[Any]:
    extent = Extent([_REPLICAS], [len(parts)])
    found = [part.exception() for part in parts]
    failures = [
        (Point(index, extent), error) for index, error in enumerate(found) if error is not None
    ]
    if failures and not return_exceptions:
        raise join_failures(failures)
    if kind is not WholeReplicaFuture:
        values = [
            part.get() if error is None else error for part, error in zip(parts, found, strict=True)
        ]
        return ValueMesh(extent, values)
    region = parts[0]._endpoint._mesh._region
    flat: list[Any] = []
    for part, error in zip(parts, found, strict=True):
        flat += part.get().values() if error is None else [error] * len(region)
    labels, sizes = list(region.labels), list(region.sizes)
    return ValueMesh(Region.row_major([_REPLICAS, *labels], [len(parts), *sizes]), flat)


def broadcast(router: Router, request: ServiceCall) -> None:
    """Send a message to every replica that accepts calls, without waiting for replies."""
    router.awake()
    sent = {place.id for place in router.open_places()}
    for place in router.open_places():
        try:
            request.broadcast_to(place)
        except Full:
            raise MailboxFull(place.mesh._window, place.mesh._name) from None
    request.keep()
    loop_thread().submit(_broadcast_on(router, request, sent))


async def _broadcast_on(router: Router, request: ServiceCall, sent: set[int]) -> None:
    """Send the message to replicas that were not known at the time of the call."""
    try:
        await router.exchange()
        for place in router.open_places():
            if place.id not in sent:
                request.broadcast_to(place)
    except (MeshError, Full):
        # The caller does not wait, and gets the error of a stopped service with its next call.
        return
