"""Services: replicas of an actor behind one handle."""

from __future__ import annotations

from typing import Any, Generic, ParamSpec, TypeVar

from mesh_core._calls.actor import endpoints_of
from mesh_core._meshes.actor_mesh import check_class
from mesh_core._meshes.mesh_place import check_owned
from mesh_core._meshes.patches import replacement_of
from mesh_core._meshes.spawn_checks import check_arguments
from mesh_core._services.options import ServiceOptions
from mesh_core._services.session import Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType
    from typing import Literal, Self

    from mesh_core._calls.actor import Actor
    from mesh_core._calls.future import Future
    from mesh_core._meshes.host_mesh import HostMesh
    from mesh_core._services.options import Autoscale, HealthCheck
    from mesh_core._services.view import ServiceStatus

    A = TypeVar("A", bound=Actor)
    B = TypeVar("B", bound=Actor)
else:
    A = TypeVar("A")

__all__ = ["Service"]

P = ParamSpec("P")


class Service(Generic[A]):
    """A constant or scaled number of replicas of an actor behind one handle.

    Each replica has its own processes. Calls go to the replica with the least load, and a replica
    that dies is replaced. The service belongs to the program or actor that spawned it, and ends
    with it. It can be sent to other actors, which may use everything except `stop`.

    Example:
        >>> from mesh_core import Actor, Service, endpoint
        >>> class Doubler(Actor):
        ...     @endpoint
        ...     def double(self, n: int) -> int:
        ...         return 2 * n
        >>> with Service.options(num_replicas=2).spawn("doublers", Doubler) as service:
        ...     service.handle.double.route(21).get()
        42
    """

    def __init__(self, controller: Any, handle: Any) -> None:
        """Create a handle to a running service; internal, use `Service.spawn`."""
        self._controller: Any = controller
        self._handle: Any = handle
        self._end: Future[None] | None = None

    @staticmethod
    def options(
        *,
        num_replicas: int = 1,
        procs: int | Mapping[str, int] = 1,
        hosts: HostMesh | None = None,
        hosts_per_replica: int = 1,
        outstanding_max: int = 64,
        queue_len_max: int = 1024,
        retries: Mapping[str, int] | None = None,
        health_check: HealthCheck | None = None,
        autoscale: Autoscale | None = None,
        setup: Callable[[Any], object] | None = None,
        bootstrap: Callable[[], Awaitable[None] | None] | None = None,
        replacements_max: int = 10,
        replacement_period_s: float = 60.0,
        backoff_s: float = 0.1,
        backoff_max_s: float = 10.0,
        start_timeout_s: float = 300.0,
        drain_timeout_s: float = 60.0,
    ) -> ServiceOptions:
        """Configure a service: `Service.options(num_replicas=4).spawn("name", Class, ...)`.

        Args:
            num_replicas: The number of replicas.
            procs: The processes of a replica on one host: a number, or dimensions with their sizes.
            hosts: The hosts over which replicas are spread. Default: this host.
            hosts_per_replica: The number of hosts per replica.
            outstanding_max: The maximum number of concurrent calls per replica, as far as its
                callers know; further calls wait.
            queue_len_max: The maximum number of waiting calls per process; one more raises
                `ServiceOverloaded`.
            retries: Endpoints that may be called again if a replica was lost during the call, with
                the maximum number of retries. Other endpoints are never called twice.
            health_check: The periodic check of replicas.
            autoscale: The policy that adapts the number of replicas to the load.
            setup: Called with the actors of each new replica before its first call, also if it
                replaces another one, for example to load the latest weights. May be `async`.
            bootstrap: Runs once in each process before any actor.
            replacements_max: The number of lost replicas that are replaced within
                `replacement_period_s`; with one more the service fails, and its owner is notified.
            replacement_period_s: The window in which losses are counted, in seconds.
            backoff_s: The pause after a failed start in seconds; it doubles with each further
                failure.
            backoff_max_s: The maximum pause in seconds.
            start_timeout_s: The time that a replica may take to start, in seconds.
            drain_timeout_s: The time that calls may take to finish in a replica that is being
                removed, in seconds.

        Raises:
            ValueError: A number is out of its range.
        """
        return ServiceOptions(
            num_replicas=num_replicas,
            procs=procs,
            hosts=hosts,
            hosts_per_replica=hosts_per_replica,
            outstanding_max=outstanding_max,
            queue_len_max=queue_len_max,
            retries=retries,
            health_check=health_check,
            autoscale=autoscale,
            setup=setup,
            bootstrap=bootstrap,
            replacements_max=replacements_max,
            replacement_period_s=replacement_period_s,
            backoff_s=backoff_s,
            backoff_max_s=backoff_max_s,
            start_timeout_s=start_timeout_s,
            drain_timeout_s=drain_timeout_s,
        )

    @staticmethod
    def spawn(name: str, cls: Callable[P, B], /, *args: P.args, **kwargs: P.kwargs) -> Service[B]:
        """Start a service with one replica and default options; see `ServiceOptions.spawn`."""
        return ServiceOptions().spawn(name, cls, *args, **kwargs)

    @property
    def handle(self) -> A:
        """The endpoints of the actors, for callers; the handle can be sent to any process.

        `route` calls one replica, `fanout` all of them.
        """
        return self._handle  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        """The name under which the service was spawned."""
        return self._handle._name  # type: ignore[no-any-return]

    @property
    def initialized(self) -> Future[Literal[True]]:
        """Done when all its replicas have been ready; raises `ActorFailed` if none can start."""
        return self._handle.initialized  # type: ignore[no-any-return]

    def session(self, *, on_move: Literal["raise", "ignore"] = "raise") -> Session[A]:
        """Return a context manager for calls that all go to the same replica.

        Args:
            on_move: The action if that replica is gone: `raise` one `SessionMoved`, or `ignore` it
                and continue with another replica.

        Raises:
            ValueError: `on_move` is neither of the two.
        """
        return Session(self._handle, on_move)

    def resize(self, num_replicas: int) -> Future[None]:
        """Change the number of replicas; done when the new number is reached.

        No call is lost: a replica that is being removed finishes its outstanding calls first.

        Raises:
            ValueError: The number is not positive, or `autoscale` determines it.
        """
        if num_replicas < 1:
            raise ValueError(f"num_replicas {num_replicas} is not positive: use stop() to end it")
        if self._handle._router.limits.is_elastic:
            raise ValueError(f"the size of service {self.name!r} follows its load: see autoscale")
        return self._controller.resize.call_one(num_replicas)  # type: ignore[no-any-return]

    def update(self, cls: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> Future[None]:
        """Replace all replicas by new ones, one at a time; done when no old one is left.

        An old replica is removed only after the new one accepts calls. If a new replica does not
        start, its error is raised, and the remaining old replicas keep running.

        Args:
            cls: The class, or a later version of it with the same endpoints.
            *args: Arguments of its `__init__`.
            **kwargs: Keyword arguments of its `__init__`.

        Raises:
            ValueError: `cls` is not an `Actor`, or lacks an endpoint.
            TypeError: The arguments do not match `__init__`, or cannot be pickled.
        """
        made: Any = replacement_of(cls)  # type: ignore[arg-type]
        check_class(made)
        check_arguments(made, args, kwargs)
        missing = endpoints_of(self._handle._cls).keys() - endpoints_of(made).keys()
        if missing:
            raise ValueError(
                f"{made.__qualname__} has no endpoint {min(missing)!r}, which callers can use"
            )
        return self._controller.update.call_one(made, args, kwargs)  # type: ignore[no-any-return]

    def settled(self) -> Future[None]:
        """Done when the service has all its replicas and all are ready; lost ones are replaced."""
        return self._controller.settled.call_one()  # type: ignore[no-any-return]

    def status(self) -> Future[ServiceStatus]:
        """Return the status of the service: its replicas, their load and the losses."""
        return self._controller.status.call_one()  # type: ignore[no-any-return]

    def stop(self) -> Future[None]:
        """Accept no more calls, wait for outstanding ones, and stop the service.

        Stopping a service twice has the same effect as stopping it once.

        Raises:
            ValueError: The service has another owner.
        """
        return self._stop(is_drained=True)

    def _stop(self, *, is_drained: bool) -> Future[None]:
        check_owned(self._controller, False, self._controller._owner_address)
        if self._end is None:
            self._end = self._handle._end_service(is_drained=is_drained)
        return self._end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        end = self._stop(is_drained=error is None)
        if error is None:
            end.get()
        else:
            end.exception()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        end = self._stop(is_drained=error is None)
        if error is None:
            await end
        else:
            await end._settled()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Service) and self._controller == other._controller

    def __hash__(self) -> int:
        return hash(self._controller)

    def __repr__(self) -> str:
        return f"<Service {self.name!r} of {self._handle._cls.__qualname__}>"

    def __reduce__(self) -> Any:
        return Service, (self._controller, self._handle)


def _start(
    options: ServiceOptions, name: str, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Service[Any]:
    # Services need asyncio, which programs without them do not import.
    from mesh_core._services.start import start_service  # noqa: PLC0415

    return Service(*start_service(options, name, cls, args, kwargs))


# `ServiceOptions.spawn` returns a `Service`: its own module cannot import this one.
ServiceOptions._start = staticmethod(_start)
