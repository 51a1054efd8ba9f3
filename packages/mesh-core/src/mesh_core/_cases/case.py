"""The contents of a case: the recorded actors with their entries, and where they come from.

A case is data. Payloads are encoded messages, which only a replay decodes.
"""

from __future__ import annotations

from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

__all__ = ["Case", "Entry", "Omitted", "RecordedActor"]

if TYPE_CHECKING:
    Fields: TypeAlias = dict[str, Any]


class Omitted(NamedTuple):
    """A payload that was not kept.

    Attributes:
        length: Its length in bytes.
        reason: Why it was not kept: `"budget"` or `"redacted"`.
    """

    length: int
    reason: str


class Entry(NamedTuple):
    """One recorded event of an actor.

    Attributes:
        number: The position among the entries of the process, from 0. Gaps are entries of other
            actors, or entries that were evicted.
        time_ns: When it was recorded, in nanoseconds since the epoch.
        kind: One of `begin`, `message`, `outcome`, `call`, `reply`, `timeout`,
            `received`, `read` and `failed`.
        fields: Plain values, as JSON can express them.
        payloads: Encoded values: for most kinds a body and its large buffers.
    """

    number: int
    time_ns: int
    kind: str
    fields: Fields
    payloads: tuple[bytes | Omitted, ...] = ()


class RecordedActor(NamedTuple):
    """One actor of a case.

    Attributes:
        mesh: The name of its mesh.
        rank: Its rank in the mesh.
        class_name: Its class, as `module:qualified name`.
        proc: The process, as `host.slot`.
        host: The host name of the machine.
        pid: The id of the process.
        evicted: The number of its entries that were evicted, after `begin`.
        entries: Its entries in the order in which they were recorded.
        ended: Why its recording ended before the case was saved, as a sentence, or empty.
    """

    mesh: str
    rank: int
    class_name: str
    proc: str
    host: str
    pid: int
    evicted: int
    entries: tuple[Entry, ...]
    ended: str = ""


class Case(NamedTuple):
    """A recorded failure.

    Attributes:
        job: The id of the job, 16 bytes.
        created_ns: When the case was saved, in nanoseconds since the epoch.
        reason: Why it was saved, in one line.
        failed: The index of the actor that failed in `actors`, or None.
        versions: Versions of Python and of installed packages, by name.
        modules: The modules of the actors' classes, by name: file, SHA-256 and source text.
        environ: Recorded environment variables.
        actors: The recorded actors, the failed one first.
    """

    job: bytes
    created_ns: int
    reason: str
    failed: int | None
    versions: dict[str, str]
    modules: dict[str, dict[str, str]]
    environ: dict[str, str]
    actors: tuple[RecordedActor, ...]
