"""Classes of the main script: sent once, loaded once, and unchanged when they return."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

from mesh_core._serialization.pickler import decode, encode_value

THRESHOLD = 65_536


def script(source: str) -> dict[str, Any]:
    """Execute the source of a main script, and return its namespace."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(textwrap.dedent(source), space)
    return space


def body_of(value: Any) -> bytes:
    return encode_value(value, THRESHOLD)[0]


def elsewhere(source: str, *bodies: bytes) -> list[str]:
    """Run the source in another interpreter, which has the bodies, and return its output."""
    head = "from mesh_core._serialization.pickler import decode, encode_value\n"
    given = f"bodies = [bytes.fromhex(text) for text in {[body.hex() for body in bodies]!r}]\n"
    ended = subprocess.run(
        [sys.executable, "-"],
        input=head + given + textwrap.dedent(source),
        env={"PYTHONPATH": ":".join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


COUNTER = """
    step = 1
    total = 0
    def advance(by):
        return by * step
    class Counter:
        made = []
        def add(self, n):
            global total
            total += advance(n)
            return total
"""


def test_a_class_received_again_keeps_its_state_in_the_process() -> None:
    space = script(COUNTER)
    bodies = [body_of(space["Counter"]()) for _ in range(2)]
    printed = elsewhere(
        """
        one = decode(bodies[0])
        print(one.add(5))
        type(one).made.append("here")
        two = decode(bodies[1])
        print(type(two) is type(one), two.add(5), two.made)
        """,
        *bodies,
    )
    assert printed == ["5", "True 10 ['here']"]


def test_a_class_that_returns_to_its_origin_is_the_original_class() -> None:
    space = script(COUNTER)
    cls, add = space["Counter"], space["Counter"].add
    (answer,) = elsewhere(
        "print(encode_value([decode(bodies[0])], 65536)[0].hex())", body_of(cls())
    )
    (value,) = decode(bytes.fromhex(answer))
    assert type(value) is cls
    assert cls.add is add
    assert (value.add(5), space["total"]) == (5, 5)


def test_a_received_class_is_forwarded_unchanged() -> None:
    space = script(COUNTER)
    body = body_of(space["Counter"])
    (answer,) = elsewhere("print(encode_value(decode(bodies[0]), 65536)[0].hex())", body)
    assert bytes.fromhex(answer) == body


def test_an_unchanged_class_is_not_pickled_again() -> None:
    space = script(COUNTER)
    assert body_of(space["Counter"]) == body_of(space["Counter"])


def check_change(space: dict[str, Any], change: str, before: int, after: int) -> None:
    """Send a class, change something, send it again, and compare its behaviour elsewhere."""
    first = body_of(space["Counter"]())
    exec(textwrap.dedent(change), space)
    second = body_of(space["Counter"]())
    source = "print(*[decode(body).add(5) for body in bodies])"
    assert elsewhere(source, first) == [str(before)]
    assert elsewhere(source, second) == [str(after)]


def test_a_replaced_method_is_sent_again() -> None:
    check_change(script(COUNTER), "Counter.add = lambda self, n: n + 1", 5, 6)


def test_a_redefined_function_is_sent_again() -> None:
    check_change(script(COUNTER), "def advance(by):\n    return by * 100", 5, 500)


def test_a_reassigned_constant_is_sent_again() -> None:
    check_change(script(COUNTER), "step = 3", 5, 15)


def test_an_added_attribute_is_sent() -> None:
    space = script(COUNTER)
    first = body_of(space["Counter"])
    space["Counter"].extra = 4
    assert elsewhere("print(hasattr(decode(bodies[0]), 'extra'))", first) == ["False"]
    assert elsewhere("print(decode(bodies[0]).extra)", body_of(space["Counter"])) == ["4"]


def test_a_name_defined_later_is_sent() -> None:
    space = script("class Late:\n    def go(self):\n        return helper()\n")
    first = body_of(space["Late"]())
    exec("def helper():\n    return 7\n", space)
    second = body_of(space["Late"]())
    assert first != second
    assert elsewhere("print(decode(bodies[0]).go())", second) == ["7"]


def test_a_changed_closure_variable_is_sent_again() -> None:
    def make() -> Any:
        factor = 1

        class Local:
            def scale(self, x: int) -> int:
                return x * factor

        def change() -> None:
            nonlocal factor
            factor = 10

        return Local, change

    local, change = make()
    first = body_of(local())
    change()
    second = body_of(local())
    source = "print(*[decode(body).scale(2) for body in bodies])"
    assert elsewhere(source, first) == ["2"]
    assert elsewhere(source, second) == ["20"]


FAMILY = """
    class Parent:
        def child(self):
            return Child()
        def name(self):
            return "parent"
    class Child(Parent):
        def parent(self):
            return Parent()
        def name(self):
            return "child of " + super().name()
    class Stranger:
        def both(self):
            return Parent(), Child(), Stranger
"""


def test_classes_that_refer_to_each_other_keep_their_identity() -> None:
    space = script(FAMILY)
    values = [space["Stranger"](), space["Child"](), space["Parent"](), [space["Child"]] * 2]
    for order in (values, values[::-1]):
        printed = elsewhere(
            """
            seen = {}
            for value in map(decode, bodies):
                for one in value if isinstance(value, list) else [type(value)]:
                    assert seen.setdefault(one.__name__, one) is one, one
            Child, Parent, Stranger = seen["Child"], seen["Parent"], seen["Stranger"]
            print(Child().name(), issubclass(Child, Parent))
            print(type(Child().parent()) is Parent, type(Parent().child()) is Child)
            parent, child, stranger = Stranger().both()
            print(type(parent) is Parent, type(child) is Child, stranger is Stranger)
            """,
            *map(body_of, order),
        )
        assert printed == ["child of parent True", "True True", "True True True"]


def test_a_changed_base_class_is_sent_with_its_subclass() -> None:
    space = script(FAMILY)
    first = body_of(space["Child"]())
    space["Parent"].name = lambda self: "somebody"
    assert elsewhere("print(decode(bodies[0]).name())", first) == ["child of parent"]
    second = body_of(space["Child"]())
    assert elsewhere("print(decode(bodies[0]).name())", second) == ["child of somebody"]


def test_enums_dataclasses_and_abstract_classes_of_the_script_can_be_sent() -> None:
    space = script(
        """
        import abc, dataclasses, enum, typing
        class Colour(enum.Enum):
            RED = 1
        @dataclasses.dataclass
        class Paint:
            colour: Colour = Colour.RED
            coats: typing.List[int] = dataclasses.field(default_factory=list)
        class Base(abc.ABC):
            @abc.abstractmethod
            def go(self): ...
        class Named(typing.NamedTuple):
            x: int
        """
    )
    value = (space["Paint"](), space["Named"](3), space["Base"], space["Colour"].RED)
    printed = elsewhere(
        """
        import abc
        paint, named, Base, red = decode(bodies[0])
        print(paint.colour is red, paint.coats, named.x, type(Base) is abc.ABCMeta)
        paint.coats.append(1)
        print(decode(bodies[0])[0] == type(paint)(), decode(bodies[0])[3] is red)
        """,
        body_of(value),
    )
    assert printed == ["True [] 3 True", "True True"]
