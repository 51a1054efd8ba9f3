"""Difficult exceptions as users write them, and a function that sends one to its caller."""

from __future__ import annotations

import sys
import textwrap
import traceback
import types
from abc import ABC
from dataclasses import dataclass
from typing import Any

from mesh_core._errors import ActorError
from mesh_core._serialization.remote_error import decode_exception, encode_exception

PLACE: dict[str, Any] = {
    "mesh_name": "trainers",
    "actor": "Trainer",
    "rank": 3,
    "point": {"hosts": 1, "gpus": 1},
    "host": "node1",
    "proc": "p3",
    "pid": 4242,
    "endpoint": "step",
}


def sent(exception: BaseException, **where: Any) -> ActorError:
    """Raise an exception as an endpoint would, and return the error that its caller receives."""
    try:
        raise exception
    except BaseException as raised:
        return decode_exception(encode_exception(raised), **where)


def printed(error: BaseException) -> str:
    """Return the text that the interpreter prints if the error is not caught."""
    try:
        raise error
    except BaseException as raised:
        return "".join(traceback.format_exception(raised))


def ghost(source: str, name: str) -> Any:
    """Return a class of a module that only this side can import, until the module is dropped."""
    module = types.ModuleType("ghost")
    sys.modules["ghost"] = module
    exec(textwrap.dedent(source), module.__dict__)
    return getattr(module, name)


class NeedsMore(Exception):
    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} refused")
        self.host, self.port = host, port


class WithDefault(Exception):
    """Its reconstruction from `args` would be wrong without an error."""

    def __init__(self, name: str, suffix: str = "!") -> None:
        super().__init__(name + suffix)
        self.name = name


class KeywordOnly(LookupError):
    def __init__(self, *, key: str) -> None:
        super().__init__()
        self.key = key

    def __str__(self) -> str:
        return f"no {self.key}"


class OwnNew(Exception):
    def __new__(cls, code: int) -> OwnNew:
        self = super().__new__(cls)
        self.code = code * 2
        return self

    code: int


class Slotted(Exception):
    __slots__ = ("rank",)

    def __init__(self, rank: int) -> None:
        self.rank = rank


class OwnReduce(Exception):
    def __init__(self, left: int, right: int) -> None:
        super().__init__(left + right)
        self.left, self.right = left, right

    def __reduce__(self) -> Any:
        return OwnReduce, (self.left, self.right)


class BadReduce(KeyError):
    def __reduce__(self) -> Any:
        raise RuntimeError("no")


class BadStr(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class BadGetattribute(ValueError):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no")


class Refusing(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("frozen")


class NoSubclasses(ValueError):
    def __init_subclass__(cls, **kwargs: Any) -> None:
        raise TypeError("final")


class Meta(type):
    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        if name != "Guarded":
            raise TypeError("no subclasses")
        return super().__new__(mcls, name, bases, namespace)


class Guarded(ArithmeticError, metaclass=Meta):
    pass


class Abstract(ValueError, ABC):
    pass


class TwoBases(KeyError, OSError):
    pass


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class OwnFields(Exception):
    """Has attributes with the same names as those of our errors."""

    message = "theirs"

    def __init__(self) -> None:
        super().__init__("own")
        self.rank = "theirs"

    @property
    def host(self) -> str:
        return "theirs"
