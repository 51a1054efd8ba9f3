"""Objects that stay in their processes, and the program's references to them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from mesh_core.spi import RequiresTensorEngine

if TYPE_CHECKING:
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._tensor.ref import Ref

__all__ = ["OpaqueRef", "opaque_handle"]


_numbers = itertools.count()


class OpaqueRef:
    """A reference to an object in a process, which the program can pass on but not inspect.

    A remote function returns `OpaqueRef(thing)`. The program gets a reference without a value and
    can pass it to other remote functions, which find the object in `value`. The object lives as
    long as the program holds its reference.

    Args:
        value: The object, in its process.
    """

    __slots__ = ("__weakref__", "_mesh", "_number", "_ref", "_value")

    _ref: Ref
    _mesh: DeviceMesh
    #: Identifies the reference among all references that the program has ever held.
    _number: int

    def __init__(self, value: Any = None) -> None:
        self._value = value

    @property
    def value(self) -> Any:
        """The object.

        Raises:
            AttributeError: This is the program, which does not have the object.
        """
        if self.is_remote:
            raise AttributeError(
                "the object exists only in its processes: use it in a remote function"
            )
        return self._value

    @property
    def is_remote(self) -> bool:
        """Whether the object is in other processes."""
        return hasattr(self, "_ref")

    @property
    def mesh(self) -> DeviceMesh:
        """The processes that hold such an object."""
        return self._mesh._on(None)

    def __repr__(self) -> str:
        return f"<OpaqueRef on {self._mesh}>" if self.is_remote else f"OpaqueRef({self._value!r})"

    def __reduce__(self) -> Any:
        raise RequiresTensorEngine(
            "an opaque object cannot leave its process: use it in a remote function"
        )


def opaque_handle(mesh: DeviceMesh, ref: Ref) -> OpaqueRef:
    """Create the program's reference."""
    made = OpaqueRef()
    made._mesh = mesh
    made._ref = ref
    made._number = next(_numbers)
    return made
