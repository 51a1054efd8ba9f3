"""Base class of actors."""

from __future__ import annotations

from mesh_core._calls.endpoint_decorators import EndpointProperty
from mesh_core._logging.python_logging import logger_of_class
from mesh_core._suggestions import similar_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any, Literal

    from mesh_core._calls.future import Future
    from mesh_core._shapes.shape import MemberMesh, Point
    from mesh_core._supervision.policy import MeshFailure

    class _Base(MemberMesh):
        """The interface of an actor mesh apart from the endpoints of the actor class."""

        # Many actor classes define an attribute `size`, which type checkers must accept.
        size: Any

        @property
        def initialized(self) -> Future[Literal[True]]:
            """See `ActorMesh.initialized`."""
            ...

        def stop(self, reason: str = ...) -> Future[None]:
            """See `ActorMesh.stop`."""
            ...

        def replace(self, rank: int | Point) -> None:
            """See `ActorMesh.replace`."""
            ...

else:
    _Base = object

__all__ = ["Actor", "endpoints_of", "is_loop_driven", "member_of"]


class _ClassLogger:
    """Logger named after the actor class; its records are forwarded to the controller.

    The descriptor defines no `__set__`, so an attribute that the actor assigns takes precedence.
    """

    def __get__(self, instance: object | None, owner: type) -> logging.Logger:
        return logger_of_class(owner)

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: Any) -> None: ...


class _RemoteCreation:
    """Explains how to spawn a class to users who know Ray; the class has no such attribute.

    The descriptor defines no `__set__`, so an attribute that the actor assigns takes precedence.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        raise AttributeError(
            f"{owner.__qualname__} has no {self._name!r}: actors are spawned on processes, as in "
            f'this_host().spawn_procs(4).spawn("{owner.__name__.lower()}", {owner.__name__}, ...)'
        )


class Actor(_Base):
    """Base class of actors: objects that live in processes of a mesh and are called by endpoints.

    `procs.spawn("name", Class, ...)` creates one instance in each process. An actor serves one
    message at a time. Mesh calls the following methods, which are all optional and may be `async`:

    - `__init__(self, ...)` runs in each process before the actor serves any message.
    - `__supervise__(self, failure) -> bool` handles failures of the meshes that this actor spawned.
    - `__cleanup__(self, error)` runs last, after everything that this actor spawned has stopped.

    Example:
        >>> from mesh_core import Actor, endpoint, this_host
        >>> class Counter(Actor):
        ...     def __init__(self, start: int) -> None:
        ...         self.value = start
        ...     @endpoint
        ...     def add(self, n: int) -> int:
        ...         self.value += n
        ...         return self.value
        >>> counters = this_host().spawn_procs({"gpus": 2}).spawn("counters", Counter, 40)
        >>> counters.add.call(2).get().values()
        [42, 42]
    """

    logger: _ClassLogger = _ClassLogger()

    if not TYPE_CHECKING:
        remote = _RemoteCreation()
        options = _RemoteCreation()

    if TYPE_CHECKING:

        def __supervise__(self, failure: MeshFailure) -> object: ...
        def __cleanup__(self, error: Exception | None) -> object: ...


def endpoints_of(cls: type) -> dict[str, EndpointProperty[..., object]]:
    """Return the endpoints of a class by name, including inherited ones."""
    found: dict[str, EndpointProperty[..., object]] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, EndpointProperty):
                found[name] = member
            else:
                found.pop(name, None)
    return found


def member_of(cls: type, name: str) -> object:
    """Return the attribute that a class or one of its bases defines, unbound.

    Raises:
        AttributeError: Neither the class nor its bases define the name.
    """
    for base in cls.__mro__:
        if name in base.__dict__:
            found: object = base.__dict__[name]
            if isinstance(found, _RemoteCreation):
                continue
            return found
    endpoints = list(endpoints_of(cls))
    meant = similar_name(name, endpoints)
    if meant:
        hint = f"did you mean {meant!r}?"
    elif endpoints:
        hint = (
            f"its endpoints are {', '.join(endpoints)}, called as in "
            f"mesh.{endpoints[0]}.call(...); other attributes exist only in the actors"
        )
    else:
        hint = "mark the methods that others call with @endpoint"
    raise AttributeError(f"{cls.__qualname__} has no endpoint {name!r}: {hint}")


def is_loop_driven(cls: type) -> bool:
    """Return whether a class needs the event loop: `__init__` or any endpoint is `async`."""
    init = getattr(cls, "__init__", None)
    code = getattr(init, "__code__", None)
    if code is not None and code.co_flags & 0x80:
        return True
    return any(member.is_async for member in endpoints_of(cls).values())
