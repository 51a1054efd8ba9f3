"""Collects the recordings of a failure from all hosts, and saves them as a case.

The collector runs in the program. It reads the log of the process that failed, and the logs of the
processes with which its actors exchanged messages, directly or through others.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import sys
import threading
import time
from base64 import b64encode
from collections import deque
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

from mesh_core._cases.case import Case, Entry, Omitted, RecordedActor
from mesh_core._cases.case_file import write_case
from mesh_core._configuration.config import effective
from mesh_core._recording.actor_recording import (
    BEGIN,
    CALL,
    FAILED,
    MESSAGE,
    OUTCOME,
    RAISED,
    READ,
    RECEIVED,
    REPLY,
    TIMEOUT,
)
from mesh_core._recording.errors import NotRecorded
from mesh_core._recording.log import read_log
from mesh_core._recording.stop import stop_cause
from mesh_core._serialization.wire import proc_id, proc_name, proc_of, read_call_meta

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from mesh_core._recording.log import LoggedEntry
    from mesh_core._runtime.runtime import Runtime

__all__ = ["CaseCollector", "Failure", "case_collector", "case_folder"]

# The time for a host to return a log, whose process may have written much.
_READ_LIMIT_S = 10.0
# The number of other processes whose logs are saved with the log of the failed process.
_PARTNERS_MAX = 16
# The length of their payloads in all; a case has a maximum length.
_PARTNERS_LEN_MAX = 256 << 20
_MODULES_MAX = 200
_SOURCE_LEN_MAX = 1 << 20
_FOLDER = "mesh-cases"


class Failure(NamedTuple):
    """A failure of a recorded actor.

    Attributes:
        proc: The process.
        incarnation: The incarnation of the process; 0 for the current one.
        port: The actor; 0 for the one that was busy when the process died.
        number: The message with which it failed; 0 for no message.
        description: The failure, in one line.
    """

    proc: int
    incarnation: int
    port: int
    number: int
    description: str


class CaseCollector:
    """Saves cases one after another on a separate thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # Failures that were saved: several ranks often fail in the same way.
        self._saved: set[tuple[str, str]] = set()
        # One case at a time, so that each gets its own name.
        self._lock = threading.Lock()
        self._wanted: queue.SimpleQueue[Failure | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mesh-cases", daemon=True)
        self._thread.start()

    def want(self, failure: Failure) -> None:
        """Save a case soon."""
        self._wanted.put(failure)

    def save(self, failure: Failure) -> Path | None:
        """Save a case now, and return its path; None if the actor is not recorded.

        Raises:
            NotRecorded: The recording of its process stopped before the actor was created.
        """
        with self._lock:
            return self._save(failure, is_requested=True)

    def close(self, limit_s: float) -> None:
        """Wait until all requested cases are saved, at most for a time in seconds."""
        self._wanted.put(None)
        self._thread.join(limit_s)

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None:
            try:
                with self._lock:
                    path = self._save(wanted)
            except Exception as error:
                print(f"mesh could not save a case: {error}", file=sys.stderr)
            else:
                if path is not None:
                    command = f"python -m mesh_core.replay {path} --trust"
                    print(f"mesh saved {path}: run {command}", file=sys.stderr)

    def _save(self, failure: Failure, *, is_requested: bool = False) -> Path | None:
        proc = failure.proc
        entries = self._read(proc, failure.incarnation)
        if not entries:
            return None
        port = failure.port or _busy_actor(entries)
        end = _end_of(entries, port, failure.number)
        # The actors continued while the log was read.
        entries = [one for one in entries if end is None or one.number <= end.number]
        actors = _actors(proc, entries)
        actors.sort(key=lambda found: found[0] != port)
        if failure.port and (not actors or actors[0][0] != port):
            cause = stop_cause(entries)
            if cause is None:
                return None
            raise NotRecorded(f"the recording ended before the actor was created, {cause}")
        key = (actors[0][1].mesh, failure.description) if actors else None
        if key is None or (key in self._saved and not is_requested):
            return None
        self._saved.add(key)
        for partner, theirs in self._read_partners(proc, entries):
            actors += _actors(
                partner, [one for one in theirs if end is None or one.time_ns <= end.time_ns]
            )
        recorded = tuple(actor for _, actor in actors)
        first = recorded[0]
        reason = f"{first.mesh}[{first.rank}]: {failure.description}"
        if first.ended:
            # The recording has stopped, so the case may lack the message that failed.
            reason += f" ({first.ended})"
        case = Case(
            job=self._runtime.identity.job,
            created_ns=time.time_ns(),
            reason=reason,
            failed=0,
            versions=_versions(),
            modules=_modules(recorded),
            environ={},
            actors=recorded,
        )
        folder = case_folder()
        folder.mkdir(parents=True, exist_ok=True)
        path = _free_path(folder, first.mesh, failure.description)
        write_case(path, case)
        return path

    def _read_partners(
        self, proc: int, entries: list[LoggedEntry]
    ) -> Iterator[tuple[int, list[LoggedEntry]]]:
        """Yield the logs of the processes that exchanged messages with one, and of their partners.

        The nearest come first.
        """
        left, known = _PARTNERS_LEN_MAX, {proc}
        waiting = deque(_partners(proc, entries))
        while waiting and len(known) <= _PARTNERS_MAX:
            partner = waiting.popleft()
            if partner in known:
                continue
            known.add(partner)
            theirs = self._read(partner, 0)
            left -= sum(_payload_len(one) for one in theirs)
            if left < 0:
                return
            yield partner, theirs
            waiting.extend(_partners(partner, theirs))

    def _read(self, proc: int, incarnation: int) -> list[LoggedEntry]:
        """Return the log of a process; empty if it was not recorded, or its host is lost."""
        agent = proc_id(proc >> 32, 0)
        slot = proc & 0xFFFF_FFFF
        files = self._runtime.ask_agent(
            agent, "read_recording", slot, incarnation, timeout=_READ_LIMIT_S
        )
        return read_log(files) if files else []


def case_collector(runtime: Runtime) -> CaseCollector:
    """Return the collector of the program; start it on first use."""
    if runtime.case_collector is None:
        runtime.case_collector = CaseCollector(runtime)
    return runtime.case_collector


def case_folder() -> Path:
    """Return the folder in which the program saves cases."""
    return effective().record_dir or Path(_FOLDER)


def _end_of(entries: list[LoggedEntry], port: int, number: int) -> LoggedEntry | None:
    """Return the entry with which an actor failed; None if the case has no such entry."""
    # An actor that was started again has counted its messages before.
    for entry in reversed(entries):
        if entry.actor != port:
            continue
        is_outcome = number > 0 and entry.kind == OUTCOME and entry.first == number
        if is_outcome or (number == 0 and entry.kind == FAILED):
            return entry
    return None


def _payload_len(entry: LoggedEntry) -> int:
    return sum(len(one) for one in entry.payloads if isinstance(one, bytes))


def _busy_actor(entries: list[LoggedEntry]) -> int:
    """Return the port of the actor that started a message last and did not finish it; or 0."""
    busy = 0
    finished = {(one.actor, one.first) for one in entries if one.kind == OUTCOME}
    for entry in entries:
        is_message = entry.kind == MESSAGE
        if is_message and (entry.actor, entry.second >> 32) not in finished:
            busy = entry.actor
    return busy


def _partners(proc: int, entries: list[LoggedEntry]) -> list[int]:
    """Return the processes that the actors of a process called or were called by."""
    found: dict[int, None] = {}
    for entry in reversed(entries):
        if entry.kind == MESSAGE:
            found[entry.first] = None
        elif entry.kind == CALL:
            name = json.loads(entry.fields).get("proc")
            if name is not None:
                found[proc_of(name)] = None
    # Slot 0 is the agent of a host, or the program itself, which have no recorded actors.
    return [one for one in found if one != proc and one & 0xFFFF_FFFF]


def _actors(proc: int, entries: list[LoggedEntry]) -> list[tuple[int, RecordedActor]]:
    """Return the actors of a process with their ports; the ones created last come first."""
    by_port: dict[int, list[LoggedEntry]] = {}
    for entry in entries:
        if entry.kind == BEGIN:
            # An actor that was started again is another actor.
            by_port.pop(entry.actor, None)
        by_port.setdefault(entry.actor, []).append(entry)
    found = []
    cause = stop_cause(entries)
    for port, of_actor in by_port.items():
        begin = of_actor[0]
        if begin.kind != BEGIN:
            continue
        fields = json.loads(begin.fields)
        messages = [entry.second >> 32 for entry in of_actor if entry.kind == MESSAGE]
        actor = RecordedActor(
            mesh=fields["mesh"],
            rank=begin.first,
            class_name=fields["class"],
            proc=proc_name(proc),
            host=fields["host"],
            pid=fields["pid"],
            evicted=messages[0] - 1 if messages else 0,
            entries=tuple(_entry(entry) for entry in of_actor),
            ended="" if cause is None else _ended(messages, cause),
        )
        found.append((port, actor))
    return found[::-1]


def _ended(messages: list[int], cause: str) -> str:
    when = f"at message {messages[-1]}" if messages else "before its first message"
    return f"the recording ended {when}, {cause}"


def _entry(entry: LoggedEntry) -> Entry:
    kind, fields = _FIELDS[entry.kind](entry)
    payloads = tuple(
        Omitted(one, "budget") if isinstance(one, int) else one for one in entry.payloads
    )
    if "length" in fields:
        # The arguments of a call, which were too long to be worth their place.
        payloads = (Omitted(fields.pop("length"), "budget"),)
    return Entry(entry.number, entry.time_ns, kind, fields, payloads)


def _begin(entry: LoggedEntry) -> tuple[str, dict[str, Any]]:
    return "begin", {**json.loads(entry.fields), "rank": entry.first, "port": f"{entry.actor:x}"}


def _message(entry: LoggedEntry) -> tuple[str, dict[str, Any]]:
    return "message", {
        "n": entry.second >> 32,
        "endpoint": read_call_meta(entry.fields)[0],
        "rank": (entry.second & 0xFFFF_FFFF) >> 1,
        "meta": b64encode(entry.fields).decode(),
        "from": proc_name(entry.first),
        "replies": bool(entry.second & 1),
    }


def _outcome(entry: LoggedEntry) -> tuple[str, dict[str, Any]]:
    fields: dict[str, Any] = {"n": entry.first, "status": "value"}
    if entry.second == RAISED:
        fields["status"], fields["error"] = "raised", entry.fields.decode(errors="replace")
    return "outcome", fields


def _call(entry: LoggedEntry) -> tuple[str, dict[str, Any]]:
    return "call", {**json.loads(entry.fields), "k": entry.first, "n": entry.second}


def _reply(entry: LoggedEntry) -> tuple[str, dict[str, Any]]:
    sender = proc_name(int.from_bytes(entry.fields, "little"))
    return "reply", {
        "k": entry.first, "rank": entry.second >> 8, "code": entry.second & 255, "from": sender,
    }  # fmt: skip


def _read(entry: LoggedEntry) -> tuple[str, dict[str, Any]]:
    return "read", {**json.loads(entry.fields), "n": entry.first}


def _received(entry: LoggedEntry) -> tuple[str, dict[str, Any]]:
    sender = proc_name(entry.second)
    return "received", {**json.loads(entry.fields), "c": entry.first, "from": sender}


def _timeout(entry: LoggedEntry) -> tuple[str, dict[str, Any]]:
    return "timeout", {"k": entry.first, "error": entry.fields.decode(errors="replace")}


def _failed(entry: LoggedEntry) -> tuple[str, dict[str, Any]]:
    return "failed", {"error": entry.fields.decode(errors="replace")}


_FIELDS = {
    BEGIN: _begin,
    MESSAGE: _message,
    OUTCOME: _outcome,
    CALL: _call,
    REPLY: _reply,
    READ: _read,
    TIMEOUT: _timeout,
    RECEIVED: _received,
    FAILED: _failed,
}


def _versions() -> dict[str, str]:
    """Return the versions of Python and of all installed packages."""
    found = {"python": sys.version.split()[0]}
    for one in distributions():
        name = one.metadata["Name"]
        if name:
            found[name] = one.version
    return found


def _modules(actors: tuple[RecordedActor, ...]) -> dict[str, dict[str, str]]:
    """Return the sources of the modules of the actors, and of those in the same directories."""
    wanted = {actor.class_name.partition(":")[0] for actor in actors}
    folders = set()
    for name in wanted:
        file = _file_of(name)
        if file is not None:
            folders.add(os.path.dirname(os.path.abspath(file)))
    found: dict[str, dict[str, str]] = {}
    for name in list(sys.modules):
        file = _file_of(name)
        if file is None or not file.endswith(".py") or len(found) >= _MODULES_MAX:
            continue
        path = os.path.abspath(file)
        if name not in wanted and os.path.dirname(path) not in folders:
            continue
        try:
            source = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if len(source) <= _SOURCE_LEN_MAX:
            digest = hashlib.sha256(source.encode()).hexdigest()
            found[name] = {"file": path, "sha256": digest, "source": source}
    return found


def _file_of(name: str) -> str | None:
    """Return the file of an imported module, or of the script, which has none while it exits."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if file is None and name == "__main__":
        main: Any = sys.modules["__main__"]
        file = sys.argv[0] if main.__spec__ is None else main.__spec__.origin
    return file if isinstance(file, str) and file else None


def _free_path(folder: Path, mesh: str, description: str) -> Path:
    """Return an unused path for a case that contains its time, mesh and description."""
    when = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    what = re.sub(r"[^A-Za-z0-9]+", "-", f"{mesh} {description}")[:60].strip("-")
    path = folder / f"{when}-{what}.case"
    count = 1
    while path.exists():
        count += 1
        path = folder / f"{when}-{what}-{count}.case"
    return path
