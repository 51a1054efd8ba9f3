"""Specifications of the processes that the agent of a host starts."""

from __future__ import annotations

import pickle

from mesh_core._meshes.patches import patches_here
from mesh_core._processes.placement import AUTO, hardware_here, resolve
from mesh_core._processes.process_spec import ProcSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mesh_core._hosts.slot import Slot
    from mesh_core._meshes.start_request import StartRequest
    from mesh_core._runtime.runtime import Runtime

__all__ = ["process_spec", "resolved_binds"]


def process_spec(
    runtime: Runtime, number: int, slot: Slot, binds: Sequence[Mapping[str, str]] | None
) -> ProcSpec:
    """Return how to start the process of a slot.

    Args:
        runtime: The runtime of the agent of the host.
        number: The number of the slot.
        slot: The slot, with the incarnation of the process that will start.
        binds: The result of `resolved_binds` for the request of the slot.
    """
    request, rank = slot.request, slot.rank
    identity = runtime.identity
    entry = pickle.dumps(
        {
            "identity": {
                "host": identity.host,
                "host_name": identity.host_name,
                "slot": number,
                "incarnation": slot.incarnation,
                "job": identity.job,
                "token": identity.token,
                "directory": identity.directory,
                "table": request.table,
                "rank": rank,
                "outlives_root": identity.outlives_root,
            },
            "config": dict(request.config),
            "host_epochs": dict(runtime.host_epochs),
            "bootstrap": request.bootstrap,
            "early_events": request.early_events,
            "is_memory_limited": request.memory_limit_bytes is not None,
            "patches": patches_here(),
        },
        5,
    )
    return ProcSpec(
        slot=number,
        incarnation=slot.incarnation,
        name=slot.log_name,
        entry=entry,
        command=None if request.commands is None else request.commands[rank],
        bind=None if binds is None else binds[rank % request.table.per_host],
        proc_count=request.table.per_host,
        unresponsive_timeout_s=slot.unresponsive_timeout_s,
        memory_limit_bytes=request.memory_limit_bytes,
    )


def resolved_binds(request: StartRequest) -> Sequence[Mapping[str, str]] | None:
    """Return the binding of each process, with its share of this host in place of `auto`."""
    binds = request.binds
    if binds is None or not any(AUTO in bind.values() for bind in binds):
        return binds
    hardware = hardware_here()
    return [resolve(bind, index, len(binds), hardware) for index, bind in enumerate(binds)]
