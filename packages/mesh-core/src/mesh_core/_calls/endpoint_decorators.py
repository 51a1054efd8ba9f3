"""The decorators that declare the endpoints of a class.

`@endpoint` replaces a method by a descriptor, an `EndpointProperty`.
"""

from __future__ import annotations

from typing import Any, Generic, ParamSpec, TypeVar, overload

from mesh_core._calls.signature import Arity, is_async

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mesh_core._calls.channel import Port
    from mesh_core._calls.endpoint import Endpoint

__all__ = ["EndpointProperty", "concurrent_endpoint", "endpoint"]

P = ParamSpec("P")
R = TypeVar("R")


class EndpointProperty(Generic[P, R]):
    """A method that a mesh can call.

    Looking it up on a mesh returns an `Endpoint`. Looking it up on the actor returns the plain
    method, so that one endpoint can use another.
    """

    def __init__(
        self,
        method: Callable[..., Any],
        *,
        propagate: Any = None,
        explicit_response_port: bool = False,
        instrument: bool = True,
        idempotent: bool = False,
        is_concurrent: bool = False,
    ) -> None:
        self.method = method
        self.propagate = propagate
        self.explicit_response_port = explicit_response_port
        self.instrument = instrument
        self.idempotent = idempotent
        self.is_concurrent = is_concurrent
        self.is_async: bool = is_async(method)
        self.arity: Arity = Arity.of(method, 2 if explicit_response_port else 1)
        self.__name__: str = method.__name__
        self.__doc__ = method.__doc__
        self.__wrapped__ = method

    def __get__(self, instance: Any, owner: type | None = None) -> Endpoint[P, R]:
        if instance is None:
            return self  # type: ignore[return-value]
        return self.method.__get__(instance, owner)  # type: ignore[no-any-return]

    def __set_name__(self, owner: type, name: str) -> None:
        self.__name__ = name


if TYPE_CHECKING:
    from typing import Concatenate, Protocol

    Self = TypeVar("Self")
    S = TypeVar("S", contravariant=True)

    class _Decorator(Protocol):
        @overload
        def __call__(
            self, method: Callable[Concatenate[Any, P], Awaitable[R]], /
        ) -> EndpointProperty[P, R]: ...
        @overload
        def __call__(
            self, method: Callable[Concatenate[Any, P], R], /
        ) -> EndpointProperty[P, R]: ...

    class _PortDecorator(Protocol):
        @overload
        def __call__(
            self, method: Callable[Concatenate[Any, Port[R], P], Awaitable[None]], /
        ) -> EndpointProperty[P, R]: ...
        @overload
        def __call__(
            self, method: Callable[Concatenate[Any, Port[R], P], None], /
        ) -> EndpointProperty[P, R]: ...

    from typing import Literal


@overload
def endpoint(method: Callable[Concatenate[Any, P], Awaitable[R]], /) -> EndpointProperty[P, R]: ...
@overload
def endpoint(method: Callable[Concatenate[Any, P], R], /) -> EndpointProperty[P, R]: ...
@overload
def endpoint(
    *,
    propagate: Any = None,
    explicit_response_port: Literal[False] = False,
    instrument: bool = True,
    idempotent: bool = False,
) -> _Decorator: ...
@overload
def endpoint(
    *,
    propagate: Any = None,
    explicit_response_port: Literal[True],
    instrument: bool = True,
    idempotent: bool = False,
) -> _PortDecorator: ...
def endpoint(
    method: Any = None,
    /,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
    idempotent: bool = False,
) -> Any:
    """Mark a method, `def` or `async def`, as callable on a mesh of its actors.

    Args:
        propagate: How the shapes of results follow from arguments, for distributed tensors.
        explicit_response_port: If true, the first parameter of the method is a `Port`, and the
            method replies on it, during the call or later, instead of returning a value.
        instrument: Whether to create a span for each call.
        idempotent: Whether `map` may repeat a call if the process of the actor dies before it
            replies.

    Example:
        >>> from mesh_core import Actor, endpoint
        >>> class Counter(Actor):
        ...     @endpoint
        ...     def add(self, n: int) -> int:
        ...         return n + 1
    """

    def mark(method: Callable[..., Any]) -> EndpointProperty[Any, Any]:
        return EndpointProperty(
            method,
            propagate=propagate,
            explicit_response_port=explicit_response_port,
            instrument=instrument,
            idempotent=idempotent,
        )

    return mark if method is None else mark(method)


@overload
def concurrent_endpoint(
    method: Callable[Concatenate[Any, P], Awaitable[R]], /
) -> EndpointProperty[P, R]: ...
@overload
def concurrent_endpoint(
    *,
    propagate: Any = None,
    explicit_response_port: Literal[False] = False,
    instrument: bool = True,
    idempotent: bool = False,
) -> _Decorator: ...
@overload
def concurrent_endpoint(
    *,
    propagate: Any = None,
    explicit_response_port: Literal[True],
    instrument: bool = True,
    idempotent: bool = False,
) -> _PortDecorator: ...
def concurrent_endpoint(
    method: Any = None,
    /,
    *,
    propagate: Any = None,
    explicit_response_port: bool = False,
    instrument: bool = True,
    idempotent: bool = False,
) -> Any:
    """Mark an `async def` that runs concurrently with the messages that follow it.

    Calls of one sender start in the order in which they were sent and complete in any order.

    Raises:
        ValueError: The method is not `async def`, or is already an endpoint.
    """

    def mark(method: Any) -> EndpointProperty[Any, Any]:
        if isinstance(method, EndpointProperty):
            raise ValueError(
                f"{method.__name__!r} is already an endpoint: use one of the two decorators"
            )
        if not is_async(method):
            raise ValueError(
                f"concurrent endpoint {method.__name__!r} must be 'async def': "
                "a plain method would block the actor"
            )
        return EndpointProperty(
            method,
            propagate=propagate,
            explicit_response_port=explicit_response_port,
            instrument=instrument,
            idempotent=idempotent,
            is_concurrent=True,
        )

    return mark if method is None else mark(method)
