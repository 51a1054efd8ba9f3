"""The outline of a pickled value: plain data, and names in place of everything else.

The opcodes of a pickle are followed without importing, creating or calling any object. The
result contains None, bool, int, float, str, bytes, list and tuple as they are, `Pairs` for a dict,
`Items` for a set, and `Elided`, `Named`, `Made` and `Buffer` for the rest. It may contain itself.
"""

from __future__ import annotations

from typing import NamedTuple

from mesh_core._cases.case import Omitted
from mesh_core._cases.pickle_stream import Elided, PickleStream, read_opcodes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Operation = Callable[["_Machine", Any], None]

__all__ = ["Buffer", "Bytes", "Items", "Made", "Named", "Pairs", "Text", "outline"]


class Named(NamedTuple):
    """A class or function, by its name."""

    name: str


class Buffer(NamedTuple):
    """A buffer beside the pickle."""

    content: bytes | Omitted


class Text(NamedTuple):
    """A string that is too long to read."""

    length: int


class Bytes(NamedTuple):
    """A bytes object that is too long to read."""

    length: int


class Pairs:
    """A dict: its items, whose keys may be anything."""

    def __init__(self) -> None:
        self.items: list[tuple[Any, Any]] = []


class Items:
    """A set or frozenset."""

    def __init__(self, name: str, items: Iterable[Any] = ()) -> None:
        self.name = name
        self.items = list(items)


class Made:
    """An object that unpickling would create.

    Attributes:
        maker: The callable: `Named`, or any other value in a damaged pickle.
        args: The arguments.
        state: The state that unpickling would set on the object, or None.
        items: The elements that unpickling would add: items, or alternating keys and values.
    """

    def __init__(self, maker: Any, args: Any) -> None:
        self.maker = maker
        self.args = args
        self.state: Any = None
        self.items: list[Any] = []


def outline(stream: PickleStream, buffers: Iterable[bytes | Omitted]) -> Any:
    """Return the outline of a pickle.

    Args:
        stream: The pickle.
        buffers: The buffers that it refers to.

    Raises:
        ValueError: The stream is not a pickle, or is too long.
        LookupError: It takes a value from an empty stack, or has a reference without a target.
    """
    machine = _Machine(buffers)
    for name, argument in read_opcodes(stream):
        operation = _OPERATIONS.get(name)
        if operation is not None:
            operation(machine, argument)
        elif name not in _WITHOUT_EFFECT:
            raise ValueError("the pickle has an unknown opcode")
    return machine.pop()


class _Machine:
    """The stacks of the unpickler."""

    def __init__(self, buffers: Iterable[bytes | Omitted]) -> None:
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.buffers = iter(buffers)

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        return self.stack.pop()

    def mark(self) -> None:
        self.marked.append(self.stack)
        self.stack = []

    def pop_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marked.pop()
        return items

    def pop_many(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("the stack is too short")
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def extend(self, items: list[Any]) -> None:
        """Add items to the list, set or object on top of the stack."""
        top = self.stack[-1]
        if type(top) is list:
            top.extend(items)
        elif type(top) in (Items, Made):
            top.items.extend(items)

    def update(self, items: list[Any]) -> None:
        """Add keys and values to the dict or object on top of the stack."""
        top = self.stack[-1]
        if type(top) is Pairs:
            top.items.extend(zip(items[::2], items[1::2], strict=False))
        elif type(top) is Made:
            top.items.extend(items)

    def make(self, maker: Any, args: Any) -> None:
        self.push(Made(maker, args))

    def build(self) -> None:
        state = self.pop()
        if type(self.stack[-1]) is Made:
            self.stack[-1].state = state

    def buffer(self) -> None:
        buffer = next(self.buffers, None)
        if buffer is None:
            raise IndexError("a buffer is missing")
        self.push(Buffer(buffer))


def _pairs(items: list[Any]) -> Pairs:
    pairs = Pairs()
    pairs.items.extend(zip(items[::2], items[1::2], strict=False))
    return pairs


def _named(*names: Any) -> Named:
    return Named(".".join(name if type(name) is str else "?" for name in names))


def _text(machine: _Machine, argument: Any) -> None:
    machine.push(Text(argument.length) if isinstance(argument, Elided) else argument)


def _bytes(machine: _Machine, argument: Any) -> None:
    machine.push(Bytes(argument.length) if isinstance(argument, Elided) else bytes(argument))


def _new_object(machine: _Machine, _argument: Any) -> None:
    cls, *args = machine.pop_mark() or (None,)
    machine.make(cls, tuple(args))


def _call(machine: _Machine, _argument: Any) -> None:
    machine.make(*machine.pop_many(2))


def _new_with_keywords(machine: _Machine, _argument: Any) -> None:
    cls, args, kwargs = machine.pop_many(3)
    machine.make(cls, (args, kwargs))


def _pop(machine: _Machine, _argument: Any) -> None:
    if machine.stack:
        machine.pop()
    else:
        machine.pop_mark()


def _pop_mark(machine: _Machine, _argument: Any) -> None:
    machine.pop_mark()


def _persistent(machine: _Machine, _argument: Any) -> None:
    machine.pop()
    machine.push(Named("persistent object"))


def _remember(machine: _Machine, argument: Any) -> None:
    machine.memo[argument] = machine.stack[-1]


_WITHOUT_EFFECT = frozenset({"PROTO", "FRAME", "STOP", "READONLY_BUFFER"})
_ATOMS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
_TEXTS = ("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
_BYTES = ("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8")
_GETS = ("GET", "BINGET", "LONG_BINGET")
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")
_EXTENSIONS = ("EXT1", "EXT2", "EXT4")

_OPERATIONS: dict[str, Operation] = {
    "NONE": lambda m, _: m.push(None),
    "NEWTRUE": lambda m, _: m.push(True),
    "NEWFALSE": lambda m, _: m.push(False),
    **dict.fromkeys(_ATOMS, lambda m, argument: m.push(argument)),
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(_BYTES, _bytes),
    **dict.fromkeys(_GETS, lambda m, argument: m.push(m.memo[argument])),
    **dict.fromkeys(_PUTS, _remember),
    **dict.fromkeys(_EXTENSIONS, lambda m, _: m.push(Named("extension"))),
    "MEMOIZE": lambda m, _: _remember(m, len(m.memo)),
    "MARK": lambda m, _: m.mark(),
    "POP": _pop,
    "POP_MARK": _pop_mark,
    "DUP": lambda m, _: m.push(m.stack[-1]),
    "EMPTY_TUPLE": lambda m, _: m.push(()),
    "TUPLE1": lambda m, _: m.push(tuple(m.pop_many(1))),
    "TUPLE2": lambda m, _: m.push(tuple(m.pop_many(2))),
    "TUPLE3": lambda m, _: m.push(tuple(m.pop_many(3))),
    "TUPLE": lambda m, _: m.push(tuple(m.pop_mark())),
    "EMPTY_LIST": lambda m, _: m.push([]),
    "LIST": lambda m, _: m.push(m.pop_mark()),
    "APPEND": lambda m, _: m.extend(m.pop_many(1)),
    "APPENDS": lambda m, _: m.extend(m.pop_mark()),
    "EMPTY_DICT": lambda m, _: m.push(Pairs()),
    "DICT": lambda m, _: m.push(_pairs(m.pop_mark())),
    "SETITEM": lambda m, _: m.update(m.pop_many(2)),
    "SETITEMS": lambda m, _: m.update(m.pop_mark()),
    "EMPTY_SET": lambda m, _: m.push(Items("set")),
    "ADDITEMS": lambda m, _: m.extend(m.pop_mark()),
    "FROZENSET": lambda m, _: m.push(Items("frozenset", m.pop_mark())),
    # The argument is the module and the name, separated by a space.
    "GLOBAL": lambda m, argument: m.push(_named(*argument.split(" ", 1))),
    "STACK_GLOBAL": lambda m, _: m.push(_named(*m.pop_many(2))),
    "INST": lambda m, argument: m.make(_named(*argument.split(" ", 1)), tuple(m.pop_mark())),
    "OBJ": _new_object,
    "NEWOBJ": _call,
    "NEWOBJ_EX": _new_with_keywords,
    "REDUCE": _call,
    "BUILD": lambda m, _: m.build(),
    "PERSID": lambda m, _: m.push(Named("persistent object")),
    "BINPERSID": _persistent,
    "NEXT_BUFFER": lambda m, _: m.buffer(),
}
