"""Decomposition of an exception into plain data, and reconstruction without its `__init__`.

A value that cannot be pickled is replaced by its `repr`. A value that cannot be unpickled is
replaced by a text that contains the reason. A class that cannot be found is replaced by a class of
the same name that derives from its nearest base class that can be found.
"""

from __future__ import annotations

import copyreg
import sys
from types import GetSetDescriptorType, MemberDescriptorType

from mesh_core._errors import MeshError
from mesh_core._serialization.pickler import decode, encode_value, is_importable
from mesh_core._serialization.traceback_text import shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    # The kind of a piece, and its value, its pickle, its text, or the index of an argument.
    Piece = tuple[int, Any]
    # Module, qualified name, and the class itself by value if it cannot be imported.
    ClassName = tuple[str, str, bytes | None]

__all__ = [
    "Parts",
    "args_of",
    "blank",
    "copy_state",
    "link",
    "links_of",
    "members_of",
    "rebuild",
    "take_apart",
]

_IN_BAND = sys.maxsize
_HEAP_TYPE = 1 << 9
_REPR_LEN_MAX = 1_000
_STAND_INS_LEN_MAX = 256
_VALUE, _PICKLE, _TEXT, _ARGUMENT = range(4)
_SCALARS = frozenset({int, float, bool, type(None)})
_TEXTS = frozenset({str, bytes})
_ARGS: Any = BaseException.__dict__["args"]
_LINKS: list[Any] = [
    BaseException.__dict__[name] for name in ("__cause__", "__context__", "__suppress_context__")
]
_GROUP_MEMBERS: Any = BaseExceptionGroup.__dict__["exceptions"]
_MEMBERS = frozenset({MemberDescriptorType, GetSetDescriptorType})
# `AttributeError.obj` may be a whole actor. The members of a group and the `__dict__` are handled
# separately.
_NOT_SENT = frozenset({"obj", "exceptions", "__weakref__", "__dict__"})

Parts = tuple["list[ClassName]", "list[Piece]", "dict[str, Piece]", "bytes | None"]
"""An exception's classes, arguments, attributes, and its custom pickle if it defines one."""

_stand_ins: dict[tuple[str, str, type[BaseException]], type[BaseException]] = {}


def take_apart(exception: BaseException, piece_len_max: int = sys.maxsize) -> Parts:
    """Decompose an exception into data that any process can load.

    Args:
        exception: The exception.
        piece_len_max: Maximum length of the pickle of a value; a longer one is replaced by a short
            text.
    """
    arguments = args_of(exception)
    if issubclass(type(exception), BaseExceptionGroup):
        arguments = arguments[:1]  # its members are sent as separate exceptions
    names = [_class_name(base, piece_len_max) for base in _bases(type(exception))]
    pieces = [_piece(value, piece_len_max) for value in arguments]
    attributes = {}
    for name, value in _state(exception):
        same = next((at for at, argument in enumerate(arguments) if argument is value), None)
        # A text of many megabytes is often both an argument and an attribute; send it only once.
        attributes[name] = _piece(value, piece_len_max) if same is None else (_ARGUMENT, same)
    pickled = _pickled(exception) if _pickles_itself(type(exception)) else None
    return names, pieces, attributes, pickled if len(pickled or b"") <= piece_len_max else None


def rebuild(parts: Parts, members: list[BaseException], message: str) -> BaseException:
    """Reconstruct an exception as faithfully as this process can.

    Args:
        parts: The result of `take_apart`.
        members: The exceptions of a group.
        message: The text of the exception, used if its class cannot be found.
    """
    names, arguments, attributes, pickled = parts
    cls = _find_class(names)
    if pickled is not None and not issubclass(cls, _StandIn):
        exception = _load((_PICKLE, pickled))
        if isinstance(exception, BaseException):
            return exception  # if its custom pickle fails here, use its parts
    args = tuple(_load(piece) for piece in arguments)
    try:
        exception = blank(cls, (*args[:1], members) if members else args)
    except TypeError:  # a group that lost its members, or must not have these
        exception = blank(_stand_in(names[0], Exception), args)
    if issubclass(cls, _StandIn):
        exception.__dict__["_mesh_message"] = message
    for name, (kind, value) in attributes.items():
        _set(exception, name, args[value] if kind == _ARGUMENT else _load((kind, value)))
    return exception


def args_of(exception: BaseException) -> tuple[Any, ...]:
    """Return the arguments that the interpreter stores, even if the class redefines `args`."""
    return _ARGS.__get__(exception)  # type: ignore[no-any-return]


def members_of(exception: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions of a group; an empty tuple for any other exception."""
    if not issubclass(type(exception), BaseExceptionGroup):
        return ()
    return _GROUP_MEMBERS.__get__(exception)  # type: ignore[no-any-return]


def links_of(
    exception: BaseException,
) -> tuple[BaseException | None, BaseException | None, bool]:
    """Return the cause, the context, and whether the context is suppressed."""
    return tuple(link.__get__(exception) for link in _LINKS)


def link(
    exception: BaseException,
    cause: BaseException | None,
    context: BaseException | None,
    is_context_hidden: bool,
) -> None:
    """Set the cause, the context, and whether it is suppressed, even on a frozen class."""
    for member, value in zip(_LINKS, (cause, context, is_context_hidden), strict=True):
        member.__set__(exception, value)


def blank(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Create an instance with these arguments without running code of the user.

    Raises:
        TypeError: The class is a group and the arguments do not match a group.
    """
    builtin: Any = cls
    while builtin.__flags__ & _HEAP_TYPE:
        builtin = builtin.__base__  # the class that determines the layout of the instances
    exception: BaseException = builtin.__new__(cls, *args)
    _initialise(builtin, exception, args)
    if not issubclass(type(exception), BaseExceptionGroup):
        _ARGS.__set__(exception, args)
    return exception


def _initialise(builtin: Any, exception: BaseException, args: tuple[Any, ...]) -> None:
    """Let the builtin type set its fields, unless a subclass stores different arguments."""
    try:
        builtin.__init__(exception, *args)
    except Exception:
        return


def copy_state(source: BaseException, target: BaseException) -> None:
    """Copy the attributes of an exception to another one of the same type."""
    for name, value in _state(source):
        _set(target, name, value)


def _state(exception: BaseException) -> Iterator[tuple[str, Any]]:
    """Iterate over the attributes in the dictionary, in slots and in fields of builtin types."""
    for base in type(exception).__mro__:
        if base is BaseException or base is object:
            continue
        for name, member in base.__dict__.items():
            if type(member) in _MEMBERS and name not in _NOT_SENT:
                try:
                    value = member.__get__(exception)
                except AttributeError:
                    continue
                if value is not None:
                    yield name, value
    for name, value in object.__getattribute__(exception, "__dict__").items():
        if not name.startswith("_mesh_"):
            yield name, value


def _set(exception: BaseException, name: str, value: Any) -> None:
    """Set an attribute, bypassing the `__setattr__` of the class."""
    for base in type(exception).__mro__:
        member: Any = base.__dict__.get(name)
        if type(member) in _MEMBERS:
            try:
                member.__set__(exception, value)
            except (AttributeError, TypeError, ValueError):
                return  # the builtin type set it from the arguments, or rejects this value
            return
    object.__getattribute__(exception, "__dict__")[name] = value


def _bases(cls: type[BaseException]) -> Iterator[type[BaseException]]:
    """Iterate over a class and its bases, nearest first, up to `BaseException`."""
    for base in cls.__mro__:
        if base in (BaseException, object):
            return
        if issubclass(base, BaseException):
            yield base


def _class_name(cls: type[BaseException], len_max: int) -> ClassName:
    by_value = None if is_importable(cls) else _pickled(cls)
    if by_value is not None and len(by_value) > len_max:
        by_value = None
    return str(cls.__module__), cls.__qualname__, by_value


def _find_class(names: list[ClassName]) -> type[BaseException]:
    """Find the class, or create a stand-in that derives from the nearest base that exists."""
    for position, name in enumerate(names):
        cls = _load_class(*name)
        if cls is not None:
            return cls if position == 0 else _stand_in(names[0], cls)
    return _stand_in(names[0], BaseException) if names else BaseException


def _load_class(module: str, qualname: str, by_value: bytes | None) -> type[BaseException] | None:
    try:
        if by_value is not None:
            found: Any = decode(by_value)
        else:
            __import__(module)
            found = sys.modules[module]
            for part in qualname.split("."):
                found = getattr(found, part)
    except (Exception, SystemExit):
        return None  # the module does not exist, or its import fails or exits
    return found if isinstance(found, type) and issubclass(found, BaseException) else None


class _StandIn:
    """Marker of a stand-in for a class that does not exist in this process."""

    def __str__(self) -> str:
        return str(self.__dict__["_mesh_message"])


def _stand_in(name: ClassName, base: type[BaseException]) -> type[BaseException]:
    module, qualname, _ = name
    found = _stand_ins.get((module, qualname, base))
    if found is None:
        namespace = {
            "__module__": module,
            "__qualname__": qualname,
            "__doc__": "Stands in for a class that this process could not load.",
        }
        found = type(qualname.rpartition(".")[2], (_StandIn, base), namespace)
        if len(_stand_ins) >= _STAND_INS_LEN_MAX:
            _stand_ins.clear()
        _stand_ins[module, qualname, base] = found
    return found


def _pickles_itself(cls: type[BaseException]) -> bool:
    """Return whether the user has customized how this class is pickled."""
    if issubclass(cls, MeshError):
        return False
    if cls in copyreg.dispatch_table:
        return True
    return any(
        base.__flags__ & _HEAP_TYPE
        and ("__reduce__" in base.__dict__ or "__reduce_ex__" in base.__dict__)
        for base in cls.__mro__
    )


def _piece(value: Any, len_max: int) -> Piece:
    if type(value) in _SCALARS or (type(value) in _TEXTS and len(value) <= len_max):
        return _VALUE, value
    pickled = _pickled(value)
    if pickled is None or len(pickled) > len_max:
        return _TEXT, _short_repr(value)
    return _PICKLE, pickled


def _pickled(value: Any) -> bytes | None:
    try:
        return encode_value(value, _IN_BAND)[0]
    except Exception:
        return None


def _short_repr(value: Any) -> str:
    try:
        return shorten(repr(value), _REPR_LEN_MAX)
    except Exception:
        return f"<{type(value).__qualname__} whose repr() raised>"


def _load(piece: Piece) -> Any:
    kind, value = piece
    if kind != _PICKLE:
        return value
    try:
        return decode(value)
    except Exception as error:
        return f"<a value that could not be loaded here: {type(error).__qualname__}: {error}>"
