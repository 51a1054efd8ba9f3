"""Updates classes and functions that are in use with new code."""

from __future__ import annotations

import gc
from contextlib import suppress
from enum import EnumMeta
from types import CellType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["update"]

#: Attributes of a class that result from its creation, and not from its source code.
_OWN = frozenset({"__dict__", "__weakref__", "_abc_impl", "__slots__"})
#: Code flags of functions that are called differently: coroutines and generators.
_KINDS = 0x20 | 0x80 | 0x100 | 0x200

_ABSENT = object()


def update(before: Mapping[str, Any], now: dict[str, Any], module: str) -> None:
    """Keep the previous classes and functions of a module, with the code of the new ones.

    Objects that refer to one of them, such as an instance to its class, therefore use the new code.
    Definitions that cannot be updated are not changed; the module then contains the new ones.

    Args:
        before: The namespace of the module before it was executed again.
        now: Its namespace.
        module: The name of the module.
    """
    classes: dict[type, type] = {}
    for name, new in list(now.items()):
        old: Any = before.get(name)
        if old is new or getattr(new, "__module__", None) != module or not _is_same(old, new):
            continue
        if isinstance(new, FunctionType) and _update_function(old, new):
            now[name] = old
        elif isinstance(new, type):
            _match_classes(old, new, classes)
    old_of = {new: old for old, new in classes.items()}
    for old, new in classes.items():
        if not _update_class(old, new, old_of):
            del old_of[new]
    _replace_everywhere(old_of)


def _is_same(old: Any, new: Any) -> bool:
    """Return whether both are versions of the same definition."""
    return (
        type(old) is type(new)
        and getattr(old, "__module__", None) == getattr(new, "__module__", None)
        and getattr(old, "__qualname__", None) == getattr(new, "__qualname__", _ABSENT)
    )


def _match_classes(old: type, new: type, found: dict[type, type]) -> None:
    """Collect a class and its nested classes, if they can be updated."""
    if isinstance(new, EnumMeta) or vars(old).get("__slots__") != vars(new).get("__slots__"):
        return
    found[old] = new
    for name, inner in vars(new).items():
        before: Any = vars(old).get(name)
        if isinstance(inner, type) and before is not inner and _is_same(before, inner):
            _match_classes(before, inner, found)


def _update_class(old: type, new: type, old_of: Mapping[type, type]) -> bool:
    bases = tuple(old_of.get(base, base) for base in new.__bases__)
    kept = dict(vars(old))
    try:
        if bases != old.__bases__:
            old.__bases__ = bases
        for name in kept.keys() - vars(new).keys() - _OWN:
            delattr(old, name)
        for name, member in vars(new).items():
            if name not in _OWN and not isinstance(
                member, (GetSetDescriptorType, MemberDescriptorType)
            ):
                setattr(old, name, _updated_member(kept.get(name), member))
    except (TypeError, AttributeError):
        # The metaclass or the layout forbids it. Restore the old class.
        for name, member in kept.items():
            if vars(old).get(name, _ABSENT) is not member:
                with suppress(TypeError, AttributeError):
                    setattr(old, name, member)
        return False
    return True


def _updated_member(old: Any, new: Any) -> Any:
    """Return the new value of a class attribute; a function in use gets the new code."""
    before, now = _function(old), _function(new)
    if before is None or now is None or before is now or type(old) is not type(new):
        return new
    is_updated = _update_function(before, now)
    return old if is_updated and isinstance(new, FunctionType) else new


def _function(member: Any) -> FunctionType | None:
    """Return the function of a method, endpoint, class method or static method."""
    inner = member if isinstance(member, FunctionType) else getattr(member, "__wrapped__", None)
    return inner if isinstance(inner, FunctionType) else None


def _update_function(old: FunctionType, new: FunctionType) -> bool:
    is_alike = old.__code__.co_freevars == new.__code__.co_freevars
    is_called_alike = not (old.__code__.co_flags ^ new.__code__.co_flags) & _KINDS
    if not (is_alike and is_called_alike and old.__globals__ is new.__globals__):
        return False
    cells = zip(old.__code__.co_freevars, old.__closure__ or (), new.__closure__ or (), strict=True)
    for name, cell, other in cells:
        if name != "__class__":
            with suppress(ValueError):
                inner, now = cell.cell_contents, other.cell_contents
                # A decorator has captured the function, which may also be in use elsewhere.
                if isinstance(inner, FunctionType) and isinstance(now, FunctionType):
                    _update_function(inner, now)
                cell.cell_contents = now
    old.__code__ = new.__code__
    old.__defaults__ = new.__defaults__
    old.__kwdefaults__ = new.__kwdefaults__
    old.__doc__ = new.__doc__
    old.__annotations__ = new.__annotations__
    vars(old).clear()
    vars(old).update(vars(new))
    return True


def _replace_everywhere(old_of: Mapping[type, type]) -> None:
    """Replace the new classes by the old ones; no other code refers to the new ones yet."""
    if not old_of:
        return
    for holder in gc.get_referrers(*old_of):
        with suppress(TypeError, AttributeError, ValueError):
            if holder is old_of:
                continue
            if isinstance(holder, CellType):
                holder.cell_contents = old_of.get(holder.cell_contents, holder.cell_contents)
            elif isinstance(holder, dict):
                _replace_values(holder, old_of)
            elif isinstance(holder, list):
                holder[:] = [_old(one, old_of) for one in holder]
            elif isinstance(holder, type) and holder not in old_of:
                holder.__bases__ = tuple(old_of.get(base, base) for base in holder.__bases__)
            elif type(holder) in old_of:
                holder.__class__ = old_of[type(holder)]


def _replace_values(holder: dict[Any, Any], old_of: Mapping[type, type]) -> None:
    for key, value in list(holder.items()):
        if (old := _old(value, old_of)) is not value:
            holder[key] = old


def _old(value: Any, old_of: Mapping[type, type]) -> Any:
    return old_of.get(value, value) if isinstance(value, type) else value
