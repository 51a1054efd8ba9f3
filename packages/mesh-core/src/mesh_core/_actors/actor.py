"""The base class of actors."""

from __future__ import annotations

from mesh_core._calls.endpoint import EndpointProperty

TYPE_CHECKING = False
if TYPE_CHECKING:
    import logging
    from typing import Any, Literal

    from mesh_core._calls.future import Future
    from mesh_core._meshes.shape import MemberMesh, Point
    from mesh_core._supervision.policy import MeshFailure

    class _Base(MemberMesh):
        """What a mesh of actors offers beside the endpoints of their class."""

        # Many actors have an attribute of this name, which is not to be refused.
        size: Any

        @property
        def initialized(self) -> Future[Literal[True]]:
            """As that of an `ActorMesh`."""
            ...

        def stop(self, reason: str = ...) -> Future[None]:
            """As that of an `ActorMesh`."""
            ...

        def replace(self, rank: int | Point) -> None:
            """As that of an `ActorMesh`."""
            ...

else:
    _Base = object

__all__ = ["Actor", "endpoints_of", "is_loop_driven", "member_of"]


class _ClassLogger:
    """A logger named after the class of the actor; its records reach the controller.

    It defines no `__set__`, so an attribute that the actor assigns takes precedence.
    """

    def __get__(self, instance: object | None, owner: type) -> logging.Logger:
        import logging  # Costs an eighth of the import of all of Mesh.

        logger = logging.getLogger(owner.__name__)
        logger.setLevel(logging.DEBUG)
        return logger

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: Any) -> None: ...


class Actor(_Base):
    """A class whose instances live in processes of a mesh and are called through endpoints.

    `procs.spawn("name", Class, ...)` makes one instance in each process. An actor serves one
    message at a time. Methods with a meaning of their own, all optional and plain or `async`:

    - `__init__(self, ...)` runs in each process, before any message;
    - `__supervise__(self, failure) -> bool` is told of failures of what this actor spawned;
    - `__cleanup__(self, error)` runs at the end, after what this actor spawned has ended.

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

    if TYPE_CHECKING:

        def __supervise__(self, failure: MeshFailure) -> object: ...
        def __cleanup__(self, error: Exception | None) -> object: ...


def endpoints_of(cls: type) -> dict[str, EndpointProperty[..., object]]:
    """Gives the endpoints of a class by name, inherited ones too."""
    found: dict[str, EndpointProperty[..., object]] = {}
    for base in reversed(cls.__mro__):
        for name, member in vars(base).items():
            if isinstance(member, EndpointProperty):
                found[name] = member
            else:
                found.pop(name, None)
    return found


def member_of(cls: type, name: str) -> object:
    """Gives what a class or its bases define under a name, unbound.

    Raises:
        AttributeError: There is no such thing.
    """
    for base in cls.__mro__:
        if name in base.__dict__:
            found: object = base.__dict__[name]
            return found
    raise AttributeError(f"{cls.__qualname__} has no endpoint or method {name!r}")


def is_loop_driven(cls: type) -> bool:
    """Says whether instances live on the event loop: some endpoint or their start is `async`."""
    init = getattr(cls, "__init__", None)
    code = getattr(init, "__code__", None)
    if code is not None and code.co_flags & 0x80:
        return True
    return any(member.is_async for member in endpoints_of(cls).values())
