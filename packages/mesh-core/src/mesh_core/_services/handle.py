"""The callers' interface to a service: the endpoints of its actors, with verbs for replicas."""

from __future__ import annotations

from typing import Any, ParamSpec, TypeVar

from mesh_core._calls.actor import member_of
from mesh_core._calls.endpoint import CallOptions, Endpoint
from mesh_core._calls.endpoint_decorators import EndpointProperty
from mesh_core._calls.future import Future, checked_timeout
from mesh_core._services.call import RouteFuture, ServiceCall
from mesh_core._services.fanout import broadcast, fan_out
from mesh_core._services.replica_state import ReplicaFuture, WholeReplicaFuture
from mesh_core._services.router import Limits, router_of
from mesh_core._services.shutdown import end_service
from mesh_core._services.view import ServiceView

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, NoReturn

    from mesh_core._calls.stream import ReplyStream
    from mesh_core._services.router import Router
    from mesh_core._services.session import Binding
    from mesh_core._shapes.value_mesh import ValueMesh

__all__ = ["ServiceEndpoint", "ServiceHandle"]

P = ParamSpec("P")
R = TypeVar("R")


class ServiceHandle:
    """The endpoints of a service: `handle.generate.route(...)`, typed as the actor's class.

    The handle can be sent to any process. All handles to a service in a process share one view of
    it.
    """

    def __init__(
        self,
        controller: Any,
        name: str,
        cls: type,
        limits: Limits,
        view: ServiceView,
        binding: Binding | None = None,
    ) -> None:
        self._controller: Any = controller
        self._name: str = name
        self._cls: type = cls
        self._binding: Binding | None = binding
        self._router: Router = router_of(controller, name, limits, view)

    def _end_service(self, *, is_drained: bool) -> Future[None]:
        return end_service(self._controller, is_drained=is_drained)

    def _bound(self, binding: Binding) -> ServiceHandle:
        router = self._router
        view = ServiceView(-1, (), {}, False)
        return ServiceHandle(self._controller, self._name, self._cls, router.limits, view, binding)

    @property
    def initialized(self) -> Future[Literal[True]]:
        """Done when all replicas of the service have been ready once."""
        future: Future[Literal[True]] = self._controller.ready.call_one()
        return future

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        cls: type = self.__dict__["_cls"]
        try:
            found = member_of(cls, name)
        except AttributeError:
            found = None
        if not isinstance(found, EndpointProperty):
            raise AttributeError(
                f"{name!r} is not an endpoint of {cls.__qualname__}: the handle of a service has "
                "only the endpoints of its actors; other methods are on the service"
            )
        endpoint: ServiceEndpoint[..., Any] = ServiceEndpoint(self, name, found)
        self.__dict__[name] = endpoint
        return endpoint

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ServiceHandle)
            and self._controller == other._controller
            and self._binding is other._binding
        )

    def __hash__(self) -> int:
        return hash(self._controller)

    def __repr__(self) -> str:
        bound = "" if self._binding is None else " in a session"
        return f"<ServiceHandle {self._name!r} of {self._cls.__qualname__}{bound}>"

    def __reduce__(self) -> Any:
        if self._binding is not None:
            raise TypeError(
                "a session cannot be sent to another process: send the service, or its handle"
            )
        router = self._router
        return ServiceHandle, (
            self._controller,
            self._name,
            self._cls,
            router.limits,
            router.known(),
        )


class ServiceEndpoint(Endpoint[P, R]):
    """One endpoint of a service."""

    __slots__ = ("_handle", "_property")

    def __init__(
        self,
        handle: ServiceHandle,
        name: str,
        found: EndpointProperty[P, R],
        options: CallOptions | None = None,
    ) -> None:
        self._handle: ServiceHandle = handle
        self._property: EndpointProperty[P, R] = found
        self._name: str = name
        self._method = found.method
        self._arity = found.arity
        self._options = options or CallOptions()

    def options(
        self, *, timeout: float | None = None, return_exceptions: bool = False
    ) -> ServiceEndpoint[P, R]:
        """Return the endpoint with call options; the timeout includes the time in the queue."""
        if timeout is not None:
            checked_timeout(timeout)
        options = CallOptions(timeout, return_exceptions)
        return ServiceEndpoint(self._handle, self._name, self._property, options)

    def route(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Call the replica with the least load, or the replica of the session.

        All actors of the replica are called, and the future has the result of the first one. If no
        replica has capacity, the call is queued.

        Raises:
            ServiceOverloaded: The queue of this process is full.
            SessionMoved: The session's replica is gone; the next call goes to another one.
            MeshStopped: The service was stopped.
            TypeError: The arguments do not match the method, or cannot be pickled.
        """
        request, router = self._request(args, kwargs), self._handle._router
        return RouteFuture(router, request, router.send(request))

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Same as `route`."""
        return self.route(*args, **kwargs)

    def call_one(self, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Same as `route`, so that code for a single actor also works with a service."""
        return self.route(*args, **kwargs)

    def fanout(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Call every replica that accepts calls, regardless of its load.

        The results have the dimension `replicas`, with the result of the first actor of each
        replica.

        Raises:
            MeshStopped: The service was stopped.
            MailboxFull: The mailbox of a replica is full of messages from this process.
            TypeError: The arguments do not match the method, or cannot be pickled.
        """
        return self._fan_out(args, kwargs, ReplicaFuture)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Future[ValueMesh[R]]:
        """Same as `fanout`, with the results of all actors of each replica, by their dimensions."""
        return self._fan_out(args, kwargs, WholeReplicaFuture)

    def _fan_out(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], kind: type[ReplicaFuture[Any]]
    ) -> Future[ValueMesh[R]]:
        request = self._request(args, kwargs)
        is_lenient = self._options.return_exceptions
        return fan_out(self._handle._router, request, kind, return_exceptions=is_lenient)

    def broadcast(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Send a message to every replica that accepts calls, without waiting for replies.

        A replica that fails because of the message is replaced.
        """
        broadcast(self._handle._router, self._request(args, kwargs))

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> ReplyStream[R]:
        """Raise an error, because services do not support `stream`.

        Raises:
            TypeError: Always.
        """
        raise TypeError("a service has no stream(): use fanout(), or route() several times")

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ServiceCall:
        if kwargs or not self._arity.fits(len(args)):
            self._arity.bind(self._method, args, kwargs)
        handle = self._handle
        retries = handle._router.limits.retries.get(self._name, 0)
        return ServiceCall(
            self._name,
            args,
            kwargs,
            self._options.timeout,
            retries=retries,
            binding=handle._binding,
        )

    if not TYPE_CHECKING:

        @property
        def _mesh(self) -> NoReturn:
            raise TypeError(
                f"endpoint {self._name!r} belongs to a service, not a mesh: use route() or fanout()"
            )

    def __repr__(self) -> str:
        return f"<ServiceEndpoint {self._name!r} of {self._handle!r}>"

    def __reduce__(self) -> Any:
        return getattr, (self._handle, self._name)
