"""Operations that the program defines itself."""

from __future__ import annotations

from typing import Any

from torch._library import custom_ops

__all__ = ["module_of"]


def module_of(func: Any) -> str | None:
    """Return the name of the module that defines a custom operation; None for PyTorch's own."""
    if func.namespace in ("aten", "prims"):
        return None
    definition = custom_ops.OPDEFS.get(f"{func._schema.name}")
    if definition is None:
        return None
    name: str | None = getattr(definition._init_fn, "__module__", None)
    return name
