"""Transport of an actor's exception to the caller, where it keeps its original type.

The callee encodes an exception with all exceptions that it is linked to (`encode_exception`). The
caller decodes it into the `ActorError` to raise (`decode_exception`). An exception always arrives:
any part of it that cannot be sent is replaced by text.
"""

from __future__ import annotations

import sys

from mesh_core._errors import ActorError, MeshError, Where, safe_str
from mesh_core._serialization.exception_parts import (
    args_of,
    blank,
    copy_state,
    link,
    links_of,
    members_of,
    rebuild,
    take_apart,
)
from mesh_core._serialization.pickler import decode, encode_value
from mesh_core._serialization.traceback_text import add_source_lines, format_user_traceback, shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypedDict, Unpack

    from mesh_core._serialization.exception_parts import Parts

    class Place(TypedDict, total=False):
        """The fields of `Where`."""

        mesh_name: str | None
        actor: str | None
        rank: int | None
        point: Any
        host: str | None
        proc: str | None
        pid: int | None
        endpoint: str | None

    # The parts of the exception (for an `ActorError`: the body and the location that it arrived
    # with), its text, and the indexes of its cause, context and members, with -1 for none.
    Link = tuple["Parts | tuple[bytes, Where]", str, int, int, bool, list[int]]

__all__ = ["as_actor_error", "decode_exception", "encode_exception"]

_LEN_MAX = 16 * 1024 * 1024
_LINKS_LEN_MAX = 64
_CLASSES_LEN_MAX = 256
# Limits on the length of a value and on the number of linked exceptions; each attempt to fit into
# the maximum length uses the next pair.
_TRIES = ((sys.maxsize, _LINKS_LEN_MAX), (4_096, _LINKS_LEN_MAX), (256, 1))
# A coroutine or generator turns these into a RuntimeError, and a future rejects them.
_UNSAFE = (StopIteration, StopAsyncIteration)
# Attributes of Mesh that yield to an attribute of the same name in the user's class.
_SHADOWABLE = frozenset(
    {"actor", "endpoint", "failures", "host", "mesh_name", "message", "pid", "point", "proc"}
    | {"rank"}
)

_classes: dict[type[BaseException], type[ActorError]] = {}


def encode_exception(exception: BaseException, len_max: int = _LEN_MAX) -> bytes:
    """Encode an exception with its traceback, causes, notes and, for a group, its members.

    This function never raises, whatever the class of the exception does.

    Args:
        exception: Any raised exception, including `SystemExit` and similar ones.
        len_max: Maximum length of the result in bytes; a larger exception loses its large values.
    """
    try:
        formatted = format_user_traceback(exception)
        for piece_len_max, links_len_max in _TRIES:
            links = _links(exception, piece_len_max, links_len_max)
            body = _write((formatted, links))
            if len(body) <= len_max:
                return body
    except Exception as error:
        formatted = f"{type(error).__qualname__} while the exception was formatted"
    text = shorten(f"{type.__repr__(type(exception))}: {safe_str(exception)}", len_max // 8)
    parts: Parts = ([("builtins", "Exception", None)], [], {}, None)
    return _write((shorten(formatted, len_max // 8), [(parts, text, -1, -1, False, [])]))


def decode_exception(body: bytes | memoryview, **where: Unpack[Place]) -> ActorError:
    """Decode the result of `encode_exception` into the error to raise at the caller.

    Args:
        body: The encoded exception.
        where: The fields of `Where` that are known.
    """
    return _decode(bytes(body), Where(**where))


def as_actor_error(
    exception: BaseException,
    *,
    message: str | None = None,
    exception_formatted: str = "",
    where: Where | None = None,
) -> ActorError:
    """Create the error that the caller gets if an actor raises this exception.

    Its class derives from `ActorError` and from the type of the exception, if it is safe to raise
    that type at the caller. `SystemExit`, `KeyboardInterrupt`, `CancelledError`, `GeneratorExit`
    and `StopIteration` would terminate or confuse the caller, so they are raised as a plain
    `ActorError`.

    Args:
        exception: The exception that the actor raised.
        message: Its text in the actor, if the text may differ here.
        exception_formatted: The traceback in the actor.
        where: The location of the actor.
    """
    args = args_of(exception)
    members = members_of(exception)
    if members:
        args = (args[0], members)
    try:
        made = blank(_class_for(type(exception)), args)
        copy_state(exception, made)
    except Exception:
        # The class does not support an instance created this way: use a plain `ActorError`, which
        # `except` clauses for the original type do not catch.
        made = blank(_make_class(type(exception)), args)
    assert isinstance(made, ActorError), "every class made here derives from ActorError"
    made._describe(exception, message, exception_formatted, where)
    link(made, *links_of(exception))
    if isinstance(made, SyntaxError) and exception_formatted:
        # For a SyntaxError, the interpreter prints the source line instead of the text.
        made.add_note(exception_formatted)
    return made


def _write(value: object) -> bytes:
    return encode_value(value, sys.maxsize)[0]


def _decode(body: bytes, where: Where) -> ActorError:
    try:
        formatted, links = decode(body)
        formatted = add_source_lines(formatted)
        exceptions = _Links(links)
        root, message = exceptions.root(), links[0][1]
    except Exception as error:
        root = MeshError("an actor raised an exception that could not be loaded here")
        root.__cause__ = error
        formatted, message = "", str(root)
    made = as_actor_error(root, message=message, exception_formatted=formatted, where=where)
    made.__dict__["_mesh_body"] = body
    return made


def _links(exception: BaseException, piece_len_max: int, len_max: int) -> list[Link]:
    """Encode an exception and all exceptions linked to it, each once and with an index."""
    found = [exception]
    numbers = {id(exception): 0}

    def number(linked: BaseException | None) -> int:
        if linked is None:
            return -1
        if id(linked) not in numbers:
            if len(found) >= len_max:
                return -1
            numbers[id(linked)] = len(found)
            found.append(linked)
        return numbers[id(linked)]

    links: list[Link] = []
    for one in found:  # the list grows during the iteration
        what: Parts | tuple[bytes, Where]
        # Check the type: `isinstance` would query the object, whose class may be hostile.
        if issubclass(type(one), ActorError):
            error: Any = one
            what, message = (_body_of(error), error.where), error.__dict__["_mesh_message"]
        else:
            what, message = take_apart(one, piece_len_max), safe_str(one)
        cause, context, is_context_hidden = links_of(one)
        links.append(
            (
                what,
                shorten(message),
                number(cause),
                number(context),
                is_context_hidden,
                [at for at in map(number, members_of(one)) if at >= 0],
            )
        )
    return links


class _Links:
    """Exceptions that were encoded together and are decoded on demand."""

    def __init__(self, links: list[Link]) -> None:
        self._links = links
        self._made: dict[int, BaseException] = {}

    def root(self) -> BaseException:
        """Decode all exceptions, link them to each other, and return the first."""
        for at in range(len(self._links)):
            self._make(at)
        for at, (_, _, cause, context, is_hidden, _) in enumerate(self._links):
            link(self._made[at], self._made.get(cause), self._made.get(context), is_hidden)
        return self._made[0]

    def _make(self, at: int) -> BaseException:
        if at not in self._made:
            what, message, _, _, _, members = self._links[at]
            if len(what) == 2:
                self._made[at] = _decode(*what)
            else:
                # The members of a group come after the group, so the recursion ends.
                inner = [self._make(member) for member in members if member > at]
                self._made[at] = rebuild(what, inner, message)
        return self._made[at]


def _class_for(kind: type[BaseException]) -> type[ActorError]:
    """Return the class as which exceptions of a type are raised."""
    if "_mesh_is_raised_as" in kind.__dict__:
        return kind  # type: ignore[return-value]
    found = _classes.get(kind)
    if found is None:
        if len(_classes) >= _CLASSES_LEN_MAX:
            _classes.clear()
        found = _classes[kind] = _make_raised_class(kind)
    return found


def _make_raised_class(kind: type[BaseException]) -> type[ActorError]:
    """Create the class for a type, or for its nearest base that can be raised at a caller."""
    for base in kind.__mro__:
        if base is Exception:
            break
        if issubclass(base, Exception) and not issubclass(base, _UNSAFE):
            try:
                return _make_class(kind, base)
            except Exception:  # this metaclass refuses; the metaclass of a base may accept
                continue
    return _make_class(kind)


def _make_class(
    kind: type[BaseException], own: type[BaseException] = ActorError
) -> type[ActorError]:
    """Create a class that derives from `ActorError` and, if given, from the user's type `own`."""
    bases = (ActorError,) if own is ActorError else (ActorError, own)
    name = f"ActorError[{kind.__qualname__.rpartition('<locals>.')[2]}]"
    namespace = {
        "__module__": "mesh_core",
        "__qualname__": name,
        "__doc__": f"A {kind.__qualname__} that an actor raised.",
        "__reduce__": _reduce,
        "_mesh_is_raised_as": kind,
    }
    for base in reversed(own.__mro__):
        if base not in ActorError.__mro__ and not issubclass(base, MeshError):
            namespace.update(
                (name, value) for name, value in base.__dict__.items() if name in _SHADOWABLE
            )
    metaclass: Any = type(own)
    made: type[ActorError] = metaclass(name, bases, namespace)
    return made


def _body_of(error: ActorError) -> bytes:
    """Return the body that an error was decoded from, or encode its original exception."""
    body: bytes | None = error.__dict__.get("_mesh_body")
    return encode_exception(error.exception) if body is None else body


def _reduce(error: ActorError) -> tuple[Any, ...]:
    state = {
        name: value
        for name, value in error.__dict__.items()
        if name in ("_mesh_failures", "_mesh_formatted", "_mesh_message", "__notes__")
    }
    return _decode, (_body_of(error), error.where), state
