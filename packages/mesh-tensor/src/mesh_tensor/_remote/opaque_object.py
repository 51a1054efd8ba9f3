"""Objects in the processes whose methods the program calls."""

from __future__ import annotations

import functools
import pkgutil
from typing import TYPE_CHECKING, Any, TypeVar

from mesh_tensor._remote.function import RemoteFunction, remote
from mesh_tensor._remote.opaque_ref import OpaqueRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import Future, ValueMesh
    from mesh_tensor._mesh.device_mesh import DeviceMesh

__all__ = ["OpaqueObject", "opaque_method"]

M = TypeVar("M", bound="Callable[..., Any]")


def _construct(what: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpaqueRef:
    make = pkgutil.resolve_name(what) if isinstance(what, str) else what
    return OpaqueRef(make(*args, **kwargs))


def _call_method(ref: OpaqueRef, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found: Any = ref.value
    for part in name.split("."):
        found = getattr(found, part)
    return found(*args, **kwargs)


construct = remote(_construct, propagate=lambda *_: OpaqueRef())
ask_method = remote(_call_method, propagate="inspect")


class OpaqueObject:
    """An object in each process of a mesh, whose methods are all that the program knows.

    A subclass describes the results of methods with `opaque_method`. `call_method` can call any
    other method.

    Args:
        what: The class or function that constructs the object in each process, its import path, or
            a reference to an existing object.
        args: The positional arguments of `what`.
        kwargs: The keyword arguments of `what`.

    Example:
        >>> class Queue(OpaqueObject):
        ...     @opaque_method
        ...     def push(self, x: torch.Tensor) -> torch.Tensor:
        ...         return torch.empty_like(x)
    """

    def __init__(
        self, what: Callable[..., Any] | str | OpaqueRef, *args: Any, **kwargs: Any
    ) -> None:
        self._object: OpaqueRef
        self._rules: dict[Any, RemoteFunction[..., Any]] = {}
        if isinstance(what, OpaqueRef):
            self._object = what
        else:
            self._object = construct(what, args, kwargs)

    @property
    def ref(self) -> OpaqueRef:
        """The object, as an argument for other remote functions."""
        return self._object

    @property
    def mesh(self) -> DeviceMesh:
        """The processes that hold the object."""
        return self._object.mesh

    def call_method(
        self, name: str, rule: Callable[..., Any] | str | None, *args: Any, **kwargs: Any
    ) -> Any:
        """Call a method in every process; return distributed tensors.

        Args:
            name: The name of the method; with dots for a method of an attribute.
            rule: How the shapes of the results are determined, like `propagate` of `remote`.
            args: The positional arguments.
            kwargs: The keyword arguments.
        """
        call = self._rules.get((name, rule))
        if call is None:
            propagate = rule
            if callable(rule):
                given = rule
                propagate = lambda _, __, args, kwargs: given(*args, **kwargs)  # noqa: E731
            call = self._rules[name, rule] = remote(_call_method, propagate=propagate)
        return call(self._object, name, args, kwargs)

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Future[ValueMesh[Any]]:
        """Call a method in every process; the future returns its results by rank."""
        return ask_method.call(self._object, name, args, kwargs)


def opaque_method(rule: M) -> M:
    """Mark a method of an `OpaqueObject`; its body is the rule for the shapes of the results.

    The body is called with tensors without values. It must write to the arguments that the real
    method writes to.
    """

    @functools.wraps(rule)
    def method(self: OpaqueObject, *args: Any, **kwargs: Any) -> Any:
        rules = self.__dict__.setdefault("_own_rules", {})
        bound = rules.get(rule)
        if bound is None:
            bound = rules[rule] = functools.partial(rule, self)
        return self.call_method(rule.__name__, bound, *args, **kwargs)

    return method  # type: ignore[return-value]
