"""Services: replicas of an actor behind one handle."""

from __future__ import annotations

from typing import Any, Generic, ParamSpec, TypeVar

from mesh_core._actors.actor import endpoints_of
from mesh_core._meshes.actor_mesh import check_class
from mesh_core._meshes.mesh import this_proc
from mesh_core._meshes.mesh_place import check_owned
from mesh_core._meshes.spawn_checks import check_arguments, checked_dims
from mesh_core._services.options import ServiceOptions
from mesh_core._services.session import Session
from mesh_core._testing.mock import replacement_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType
    from typing import Literal, Self

    from mesh_core._actors.actor import Actor
    from mesh_core._calls.future import Future
    from mesh_core._meshes.mesh import HostMesh
    from mesh_core._services.options import Autoscale, HealthCheck
    from mesh_core._services.view import ServiceStatus

    A = TypeVar("A", bound=Actor)
    B = TypeVar("B", bound=Actor)
else:
    A = TypeVar("A")

__all__ = ["Service", "start_service"]

P = ParamSpec("P")


class Service(Generic[A]):
    """Replicas of an actor behind one handle, kept at their number.

    Each replica has processes of its own. Calls go to the one with the least load; a replica that
    dies is replaced. The service belongs to who spawned it, and ends with them. It can be sent to
    other actors, which may use all of it but `stop`.

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

    def __init__(self, keeper: Any, handle: Any) -> None:
        """Is for Mesh itself: use `Service.spawn`."""
        self._keeper: Any = keeper
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
        """Says how a service is to be: `Service.options(num_replicas=4).spawn("name", Class, ...)`.

        Args:
            num_replicas: How many replicas.
            procs: The processes of each on one host: how many, or dimensions with their sizes.
            hosts: Where they are; on this host when left out. Replicas are spread over them.
            hosts_per_replica: Over how many hosts each replica extends.
            outstanding_max: How many calls a replica may have at a time, as far as its callers
                know; more wait.
            queue_len_max: How many calls of one process may wait; for more, `ServiceOverloaded`.
            retries: Endpoints that may be called again when a replica was lost in the middle of
                it, and how often. Others are never called twice.
            health_check: What to ask replicas from time to time.
            autoscale: Lets the number of replicas follow the load.
            setup: Called with the actors of each new replica before it takes calls, also where it
                replaces another: to give it the latest weights. May be `async`.
            bootstrap: Runs once in each process before any actor.
            replacements_max: How many losses in `replacement_period_s` are made up for; with the
                next one the service fails, and its owner is told.
            replacement_period_s: The window in which losses are counted.
            backoff_s: The pause after a start that has failed; twice as long after each further.
            backoff_max_s: The longest pause.
            start_timeout_s: How long a replica may take to start.
            drain_timeout_s: How long calls may take to end in a replica that is taken away.

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
        """Starts a service of one replica with the usual options; see `ServiceOptions.spawn`."""
        return ServiceOptions().spawn(name, cls, *args, **kwargs)

    @property
    def handle(self) -> A:
        """What calls it: the endpoints of its actors, to be sent to whoever is to call.

        `route` calls one replica, `fanout` all of them.
        """
        return self._handle  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        """The name that it was spawned under."""
        return self._handle._name  # type: ignore[no-any-return]

    @property
    def initialized(self) -> Future[Literal[True]]:
        """Done when all its replicas have been ready; raises `ActorFailed` if none can start."""
        return self._handle.initialized  # type: ignore[no-any-return]

    def session(self, *, on_move: Literal["raise", "ignore"] = "raise") -> Session[A]:
        """Gives calls that go to one and the same replica.

        Args:
            on_move: What to do when that replica is gone: `raise` a `SessionMoved`, once, or
                `ignore` it and go on with another one.

        Raises:
            ValueError: `on_move` is neither of the two.
        """
        return Session(self._handle, on_move)

    def resize(self, num_replicas: int) -> Future[None]:
        """Changes the number of replicas; done when there are so many.

        No call is lost: a replica that is taken away serves what it has first.

        Raises:
            ValueError: The number is not positive, or the load decides about it.
        """
        if num_replicas < 1:
            raise ValueError(f"num_replicas {num_replicas} is not positive: use stop() to end it")
        if self._handle._router.limits.is_elastic:
            raise ValueError(f"the size of service {self.name!r} follows its load: see autoscale")
        return self._keeper.resize.call_one(num_replicas)  # type: ignore[no-any-return]

    def update(self, cls: Callable[P, A], /, *args: P.args, **kwargs: P.kwargs) -> Future[None]:
        """Puts new replicas in the place of all, one at a time; done when no old one is left.

        Each new one takes calls before an old one is taken away. If one does not start, its error
        is raised, and the old ones that are left go on.

        Args:
            cls: The class, or a later version of it with the same endpoints.
            *args: Arguments of its `__init__`.
            **kwargs: Arguments of its `__init__` by keyword.

        Raises:
            ValueError: The class is no `Actor`, or lacks an endpoint.
            TypeError: The arguments do not fit `__init__`, or cannot be pickled.
        """
        made: Any = replacement_of(cls)  # type: ignore[arg-type]
        _check(made, args, kwargs)
        missing = endpoints_of(self._handle._cls).keys() - endpoints_of(made).keys()
        if missing:
            raise ValueError(
                f"{made.__qualname__} has no endpoint {min(missing)!r}, which callers may use"
            )
        return self._keeper.update.call_one(made, args, kwargs)  # type: ignore[no-any-return]

    def settled(self) -> Future[None]:
        """Done when it has its number of replicas, all ready: those lost so far are replaced."""
        return self._keeper.settled.call_one()  # type: ignore[no-any-return]

    def status(self) -> Future[ServiceStatus]:
        """Says how the service is: its replicas, their load, what was lost."""
        return self._keeper.status.call_one()  # type: ignore[no-any-return]

    def stop(self) -> Future[None]:
        """Takes no more calls, lets those under way end, and stops all.

        Stopping twice is the same as once.

        Raises:
            ValueError: It is owned by somebody else.
        """
        return self._stop(is_drained=True)

    def _stop(self, *, is_drained: bool) -> Future[None]:
        check_owned(self._keeper, False, self._keeper._owner_address)
        if self._end is None:
            from mesh_core._services.shutdown import end_service

            self._end = end_service(self._keeper, is_drained=is_drained)
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
        return isinstance(other, Service) and self._keeper == other._keeper

    def __hash__(self) -> int:
        return hash(self._keeper)

    def __repr__(self) -> str:
        return f"<Service {self.name!r} of {self._handle._cls.__qualname__}>"

    def __reduce__(self) -> Any:
        return Service, (self._keeper, self._handle)


def _check(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    check_class(cls)
    check_arguments(cls, args, kwargs)


def start_service(
    options: ServiceOptions, name: str, cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Service[Any]:
    """Starts the actor that keeps a service, which starts the rest."""
    from mesh_core._services.controller import ServiceKeeper
    from mesh_core._services.handle import ServiceHandle
    from mesh_core._services.replica import Spec, host_groups
    from mesh_core._services.router import Limits
    from mesh_core._services.view import Whole

    cls = replacement_of(cls)
    _check(cls, args, kwargs)
    checked_dims(options.procs, ("hosts",) if options.hosts_per_replica > 1 else ())
    host_groups(options.hosts, options.hosts_per_replica)
    named = set(options.retries)
    if options.health_check is not None:
        named.add(options.health_check.endpoint)
    unknown = named - endpoints_of(cls).keys()
    if unknown:
        raise ValueError(f"{cls.__qualname__} has no endpoint {min(unknown)!r}, which is named")
    spec = Spec(name, cls, args, kwargs, options)
    keeper: Any = this_proc().spawn(name, ServiceKeeper, spec)
    limits = Limits(
        options.outstanding_max,
        options.queue_len_max,
        options.retries,
        is_elastic=options.autoscale is not None,
    )
    return Service(keeper, ServiceHandle(keeper, name, cls, limits, Whole(-1, (), {}, False)))
