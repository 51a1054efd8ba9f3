"""Start of a service."""

from __future__ import annotations

from typing import Any

from mesh_core._calls.actor import endpoints_of
from mesh_core._meshes.actor_mesh import check_class
from mesh_core._meshes.patches import replacement_of
from mesh_core._meshes.proc_mesh import this_proc
from mesh_core._meshes.spawn_checks import check_arguments, check_name_and_class, checked_dims
from mesh_core._services.controller import ServiceController
from mesh_core._services.handle import ServiceHandle
from mesh_core._services.replica import Spec, host_groups
from mesh_core._services.router import Limits
from mesh_core._services.view import ServiceView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mesh_core._services.options import ServiceOptions

__all__ = ["start_service"]


def start_service(
    options: ServiceOptions, name: str, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ServiceHandle]:
    """Start the actor that manages a service; return it and the handle for callers."""
    check_name_and_class(name, cls)
    cls = replacement_of(cls)
    check_class(cls)
    check_arguments(cls, args, kwargs)
    checked_dims(options.procs, ("hosts",) if options.hosts_per_replica > 1 else ())
    host_groups(options.hosts, options.hosts_per_replica)
    named = set(options.retries)
    if options.health_check is not None:
        named.add(options.health_check.endpoint)
    unknown = named - endpoints_of(cls).keys()
    if unknown:
        raise ValueError(
            f"{cls.__qualname__} has no endpoint {min(unknown)!r}, which the options name"
        )
    spec = Spec(name, cls, args, kwargs, options)
    controller: Any = this_proc().spawn(name, ServiceController, spec)
    limits = Limits(
        options.outstanding_max,
        options.queue_len_max,
        options.retries,
        is_elastic=options.autoscale is not None,
    )
    return controller, ServiceHandle(controller, name, cls, limits, ServiceView(-1, (), {}, False))
