"""The places of values in a pickle, found without unpickling it.

Unpickling a message a second time could have effects, for example if it contains a response port,
which replies when it is dropped. This module follows the opcodes instead. For tuples, lists and
dicts, it determines the places of the elements; for every other object, only the place.
"""

from __future__ import annotations

import pickletools
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Node", "Opcode", "Parsed", "Place", "parse"]

_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_TEXTS = frozenset({"UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_WITHOUT_EFFECT = frozenset({"PROTO", "FRAME", "STOP", "READONLY_BUFFER"})


class Node:
    """A value.

    Attributes:
        start: The position of the first opcode that creates it.
        end: The position after the last one.
        text: The value of a string.
        items: The items of a tuple or list.
        pairs: The items of a dict.
        state: The state that is set on an object after its creation.
    """

    __slots__ = ("end", "items", "pairs", "start", "state", "text")

    def __init__(self, start: int, end: int, text: str | None = None) -> None:
        self.start = start
        self.end = end
        self.text = text
        self.items: list[Place] = []
        self.pairs: list[tuple[Place, Place]] = []
        self.state: Place | None = None


class Place(NamedTuple):
    """Where a value is pushed: the opcodes from `start` up to `end`."""

    node: Node
    start: int
    end: int


class Opcode(NamedTuple):
    """An opcode with its place.

    Attributes:
        name: Its name.
        start: The position of the opcode.
        end: The position of the next one.
        slot: The index that it writes to or reads from the memo; otherwise -1.
        node: The value that it writes to the memo.
    """

    name: str
    start: int
    end: int
    slot: int
    node: Node | None


class Parsed(NamedTuple):
    """A pickle with its value and its opcodes."""

    stream: bytes
    root: Node
    opcodes: list[Opcode]


def parse(stream: bytes) -> Parsed:
    """Find the places of the values in a pickle.

    Raises:
        ValueError: The pickle is damaged, or in a form that no pickler of this package writes.
        LookupError: It takes something from an empty stack.
    """
    found = [(kind, argument, at or 0) for kind, argument, at in pickletools.genops(stream)]
    ends = [*(at for _, _, at in found[1:]), len(stream)]
    machine = _Machine()
    opcodes: list[Opcode] = []
    before = ""
    for (kind, argument, start), end in zip(found, ends, strict=True):
        if before == "POP" and kind.name in _GETS:
            raise ValueError("a tuple contains itself")
        slot, node = machine.step(kind, argument, start, end)
        opcodes.append(Opcode(kind.name, start, end, slot, node))
        before = kind.name
    (root, _) = machine.stack.pop()
    return Parsed(stream, root, opcodes)


class _Machine:
    """The stack and the memo of the unpickler."""

    def __init__(self) -> None:
        self.stack: list[tuple[Node, int]] = []
        self._marks: list[tuple[int, int]] = []
        self._memo: dict[int, Node] = {}

    def step(self, kind: Any, argument: Any, at: int, end: int) -> tuple[int, Node | None]:
        """Follow an opcode; return its slot of the memo, and the value that it writes there."""
        name = kind.name
        if name in _GETS:
            self.stack.append((self._memo[int(argument)], at))
            return int(argument), None
        if name == "MEMOIZE" or name in _PUTS:
            slot = len(self._memo) if name == "MEMOIZE" else int(argument)
            node = self._memo[slot] = self.stack[-1][0]
            node.end = end
            return slot, node
        if name in _TEXTS:
            self.stack.append((Node(at, end, argument), at))
        elif name in _TUPLES or name in ("TUPLE", "LIST"):
            items, first = self._pop(_TUPLES.get(name), at)
            node = Node(first, end)
            node.items = items
            self.stack.append((node, first))
        elif name in ("APPEND", "APPENDS", "ADDITEMS", "SETITEM", "SETITEMS", "BUILD"):
            self._extend(name, at, end)
        elif name == "MARK":
            self._marks.append((len(self.stack), at))
        elif name == "POP" and not (self._marks and self._marks[-1][0] == len(self.stack)):
            # A function that was called for its effect on the value below.
            self.stack.pop()
            self.stack[-1][0].end = end
        elif name in ("POP", "POP_MARK", "DUP", "DICT"):
            raise ValueError(f"unexpected opcode {name}")
        elif name not in _WITHOUT_EFFECT:
            self._replace(kind, at, end)
        return -1, None

    def _pop(self, count: int | None, at: int) -> tuple[list[Place], int]:
        """Pop values, or those from the last mark; return their places and where they start."""
        first = at
        if count is None:
            length, first = self._marks.pop()
            count = len(self.stack) - length
        elif count:
            first = self.stack[-count][1]
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        if not taken:
            return [], first
        ends = [*(start for _, start in taken[1:]), at]
        places = [Place(node, start, end) for (node, start), end in zip(taken, ends, strict=True)]
        return places, first

    def _extend(self, name: str, at: int, end: int) -> None:
        """Add values to the container or object below them."""
        counts = {"APPEND": 1, "SETITEM": 2, "BUILD": 1}
        places, _ = self._pop(counts.get(name), at)
        top = self.stack[-1][0]
        top.end = end
        if name == "BUILD":
            top.state = places[0]
        elif name.startswith("SETITEM"):
            top.pairs += zip(places[::2], places[1::2], strict=True)
        else:
            top.items += places

    def _replace(self, kind: Any, at: int, end: int) -> None:
        """Replace the values that an opcode takes by the values that it creates."""
        taken = kind.stack_before
        first = at
        if pickletools.markobject in taken:
            _, first = self._pop(None, at)
            taken = taken[: taken.index(pickletools.markobject)]
        if taken:
            _, first = self._pop(len(taken), at)
        self.stack += [(Node(first, end), first) for _ in kind.stack_after]
