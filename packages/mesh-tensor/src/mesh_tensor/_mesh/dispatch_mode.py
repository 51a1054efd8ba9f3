"""The dispatch mode of a thread in which a mesh is active."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils._python_dispatch import TorchDispatchMode

from mesh_tensor._tensor.dispatch_backend import backend_slot

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DispatchMode"]


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Issues operations without distributed operands to the active mesh."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return backend_slot.backend.dispatch_in_mode(func, types, args, kwargs or {})

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # By default, PyTorch wraps the method above to exclude it from compilation, which costs
        # time for each operation. Code that issues operations is never compiled.
        return False
