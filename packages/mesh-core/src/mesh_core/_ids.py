"""Names of processes and actors: strings that can be taken apart.

They compare, sort, print and travel as the strings they are, and work as keys beside them.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ActorAddr", "ProcId", "Uid"]

_UID = re.compile(r"(?:([A-Za-z0-9_.-]{1,255})-)?([0-9a-f]{16})")
_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_PROC = re.compile(r"(.*)/(\d+)\.(\d+)", re.DOTALL)
_ACTOR = re.compile(r"(.*/\d+\.\d+):(\d+)", re.DOTALL)


class Uid(str):
    """Something that there is only one of: 16 hexadecimal digits, perhaps behind a label.

    As `00c5b4a1d2e3f401` or `trainer-00c5b4a1d2e3f401`.

    Raises:
        ValueError: The text is nothing of that kind.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Uid:
        if not _UID.fullmatch(text):
            raise ValueError(f"{text!r} is no uid: write it like 'label-00c5b4a1d2e3f401'")
        return str.__new__(cls, text)

    @staticmethod
    def anonymous() -> Uid:
        """Makes one that there was never before, without a label."""
        from os import urandom

        return Uid(urandom(8).hex())

    @staticmethod
    def instance(label: str) -> Uid:
        """Makes one that there was never before.

        Raises:
            ValueError: The label is empty, too long, or has other characters than letters, digits,
                `_`, `.` and `-`.
        """
        if not _LABEL.fullmatch(label):
            raise ValueError(
                f"label {label!r} is not 1 to 255 letters, digits, '_', '.' and '-': rename it"
            )
        return Uid(f"{label}-{Uid.anonymous()}")

    @staticmethod
    def from_string(text: str) -> Uid:
        """Reads one.

        Raises:
            ValueError: The text is no uid.
        """
        return Uid(text)

    @property
    def label(self) -> str | None:
        """What stands before the digits."""
        return self.rpartition("-")[0] or None


class ProcId(str):
    """A place for a process: a slot on a host, as `host/0.3`.

    A process that replaces a dead one has the id of its predecessor.

    Raises:
        ValueError: The text is nothing of that kind.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> ProcId:
        if not _PROC.fullmatch(text):
            raise ValueError(f"{text!r} is no process id: write it like 'host/0.3'")
        return str.__new__(cls, text)

    @staticmethod
    def from_string(text: str) -> ProcId:
        """Reads one.

        Raises:
            ValueError: The text is no process id.
        """
        return ProcId(text)

    @property
    def host_name(self) -> str:
        """What the host calls itself."""
        return self.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The id without the name of the host, as `0.3`."""
        return self.rpartition("/")[2]

    @property
    def host(self) -> int:
        """The number of the host in the job."""
        return int(self.name.partition(".")[0])

    @property
    def slot(self) -> int:
        """The place on the host."""
        return int(self.name.partition(".")[2])

    @property
    def is_root(self) -> bool:
        """Whether it is the process of the program itself."""
        return self.name == "0.0"


class ActorAddr(str):
    """Where one actor is: its process and its port there, as `host/0.3:17`.

    All actors of a mesh have the same port, each in its own process. The label is for humans and
    no part of the string.

    Raises:
        ValueError: The text is nothing of that kind.
    """

    __slots__ = ("_label",)
    _label: str

    def __new__(cls, text: str, label: str = "") -> ActorAddr:
        if not _ACTOR.fullmatch(text):
            raise ValueError(f"{text!r} is no address of an actor: write it like 'host/0.3:17'")
        made = str.__new__(cls, text)
        made._label = label
        return made

    @staticmethod
    def from_string(text: str) -> ActorAddr:
        """Reads one.

        Raises:
            ValueError: The text is no address of an actor.
        """
        return ActorAddr(text)

    @property
    def addr(self) -> str:
        """The whole address."""
        return str(self)

    @property
    def proc_id(self) -> ProcId:
        """Its process."""
        return ProcId(self.rpartition(":")[0])

    @property
    def proc_name(self) -> str:
        """The name of its process, as `0.3`."""
        return self.proc_id.name

    @property
    def port(self) -> int:
        """Its port there."""
        return int(self.rpartition(":")[2])

    @property
    def label(self) -> str:
        """The name that its mesh was spawned under, if that is known."""
        return self._label

    @property
    def actor_name(self) -> str:
        """The label; where that is not known, the port."""
        return self._label or str(self.port)

    @property
    def uid(self) -> Uid:
        """What all actors of its mesh have in common, and nobody else in the job."""
        return Uid(f"{self.port:016x}")

    @property
    def is_root(self) -> bool:
        """Whether it is the program itself."""
        return self.port == 0 and self.proc_id.is_root

    def __reduce__(self) -> Any:
        return ActorAddr, (str(self), self._label)
