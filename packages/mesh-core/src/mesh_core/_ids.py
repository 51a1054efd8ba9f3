"""Identifiers of processes and actors: strings that can be parsed into their parts.

They compare, sort, print and hash like plain strings, so they also work as dictionary keys.
"""

from __future__ import annotations

import re
from os import urandom

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["ActorAddr", "ProcId", "Uid"]

_UID = re.compile(r"(?:([A-Za-z0-9_.-]{1,255})-)?([0-9a-f]{16})")
_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_PROC = re.compile(r"(.*)/(\d+)\.(\d+)", re.DOTALL)
_ACTOR = re.compile(r"(.*/\d+\.\d+):(\d+)", re.DOTALL)


class Uid(str):
    """Identifier of a unique object: 16 hexadecimal digits with an optional label as prefix.

    Examples: `00c5b4a1d2e3f401` and `trainer-00c5b4a1d2e3f401`.

    Raises:
        ValueError: The text is not a valid uid.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> Uid:
        if not _UID.fullmatch(text):
            raise ValueError(f"{text!r} is not a uid: write it like 'label-00c5b4a1d2e3f401'")
        return str.__new__(cls, text)

    @staticmethod
    def anonymous() -> Uid:
        """Generate a random uid without a label."""
        return Uid(urandom(8).hex())

    @staticmethod
    def instance(label: str) -> Uid:
        """Generate a random uid with a label.

        Raises:
            ValueError: The label is empty, longer than 255 characters, or contains characters other
                than letters, digits, `_`, `.` and `-`.
        """
        if not _LABEL.fullmatch(label):
            raise ValueError(
                f"label {label!r} is not 1 to 255 letters, digits, '_', '.' and '-': rename it"
            )
        return Uid(f"{label}-{Uid.anonymous()}")

    @staticmethod
    def from_string(text: str) -> Uid:
        """Parse a uid.

        Raises:
            ValueError: The text is not a valid uid.
        """
        return Uid(text)

    @property
    def label(self) -> str | None:
        """The label, or None if the uid has none."""
        return self.rpartition("-")[0] or None


class ProcId(str):
    """Identifier of a process: a slot on a host, such as `host/0.3`.

    A process that replaces a dead one has the same id.

    Raises:
        ValueError: The text is not a valid process id.
    """

    __slots__ = ()

    def __new__(cls, text: str) -> ProcId:
        if not _PROC.fullmatch(text):
            raise ValueError(f"{text!r} is not a process id: write it like 'host/0.3'")
        return str.__new__(cls, text)

    @staticmethod
    def from_string(text: str) -> ProcId:
        """Parse a process id.

        Raises:
            ValueError: The text is not a valid process id.
        """
        return ProcId(text)

    @property
    def host_name(self) -> str:
        """The name of the host, as the host reports it."""
        return self.rpartition("/")[0]

    @property
    def name(self) -> str:
        """The id without the host name, such as `0.3`."""
        return self.rpartition("/")[2]

    @property
    def host(self) -> int:
        """The number of the host in the job."""
        return int(self.name.partition(".")[0])

    @property
    def slot(self) -> int:
        """The slot of the process on its host."""
        return int(self.name.partition(".")[2])

    @property
    def is_root(self) -> bool:
        """Whether the id identifies the process of the program."""
        return self.name == "0.0"


class ActorAddr(str):
    """Address of one actor: its process and its port in that process, such as `host/0.3:17`.

    All actors of a mesh have the same port, each in a different process. The label is for display
    only and not part of the string.

    Raises:
        ValueError: The text is not a valid actor address.
    """

    __slots__ = ("_label",)
    _label: str

    def __new__(cls, text: str, label: str = "") -> ActorAddr:
        if not _ACTOR.fullmatch(text):
            raise ValueError(f"{text!r} is not an address of an actor: write it like 'host/0.3:17'")
        made = str.__new__(cls, text)
        made._label = label
        return made

    @staticmethod
    def from_string(text: str) -> ActorAddr:
        """Parse an actor address.

        Raises:
            ValueError: The text is not a valid actor address.
        """
        return ActorAddr(text)

    @property
    def addr(self) -> str:
        """The full address."""
        return str(self)

    @property
    def proc_id(self) -> ProcId:
        """The id of the actor's process."""
        return ProcId(self.rpartition(":")[0])

    @property
    def proc_name(self) -> str:
        """The name of the actor's process, such as `0.3`."""
        return self.proc_id.name

    @property
    def port(self) -> int:
        """The port of the actor in its process."""
        return int(self.rpartition(":")[2])

    @property
    def label(self) -> str:
        """The name that the mesh of the actor was spawned with; empty if it is not known."""
        return self._label

    @property
    def actor_name(self) -> str:
        """The label, or the port if the label is not known."""
        return self._label or str(self.port)

    @property
    def uid(self) -> Uid:
        """The uid that all actors of a mesh share and no other mesh in the job has."""
        return Uid(f"{self.port:016x}")

    @property
    def is_root(self) -> bool:
        """Whether the address is that of the program itself."""
        return self.port == 0 and self.proc_id.is_root

    def __reduce__(self) -> Any:
        return ActorAddr, (str(self), self._label)
