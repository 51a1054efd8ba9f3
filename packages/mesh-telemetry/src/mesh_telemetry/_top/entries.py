"""The entries of the tree: hosts, processes, meshes and actors."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mesh_telemetry._top.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from mesh_telemetry._top.snapshot import Host, Mesh, Proc, Row

__all__ = ["PAGE_LEN", "SORTS", "Entry", "Key", "Target", "TreeModel", "View", "children"]

#: The number of lines of a branch that are shown at once; more are shown on request.
PAGE_LEN = 100
# More meshes below one entry are grouped by class, if a class has at least the second number.
_FLAT_LEN_MAX = 40
_GROUP_LEN_MIN = 10
_FAILED = ("failed", "deadlock")
SORTS = ("name", "cpu", "memory", "messages")

#: Kind and id of an entry, which are the same in all snapshots.
Key = tuple[str, str]


class Target(NamedTuple):
    """A mesh that can be stopped: its number, its owner, and its title."""

    mesh_id: int
    proc: str
    title: str


@dataclass(frozen=True)
class View:
    """The selection and order of entries to show."""

    is_by_mesh: bool = False
    wanted: str = ""
    sort: str = "name"
    is_system_shown: bool = False
    are_stopped_hidden: bool = False


@dataclass(frozen=True)
class Entry:
    """A line of the tree.

    Attributes:
        key: The identity of the entry.
        title: The title.
        state: `running`, `waiting`, `stopped`, `failed`, `deadlock`, or `plain`.
        note: The text after the title.
        measures: CPU in percent, memory in bytes, messages per second.
        load: The part of the available CPU time that is used; None if it is not known.
        is_branch: Whether it may have entries below.
        row: The row that it was created from.
    """

    key: Key
    title: str
    state: str
    note: str = ""
    measures: tuple[float | None, int | None, float | None] | None = None
    load: float | None = None
    is_branch: bool = False
    row: Row = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The kind of the entry: `host`, `proc`, `procs`, `class`, `mesh`, `actor`, `more`."""
        return self.key[0]


@dataclass(frozen=True)
class TreeModel:
    """A snapshot of a program, and the actors of open branches.

    Attributes:
        snapshot: The snapshot.
        actors: The rows of actors below a branch: as many as are shown, and one more.
        wanted: The filter with which it was queried; a new filter takes effect with the next query.
        found: Processes and meshes with actors that match the filter.
    """

    snapshot: Snapshot
    actors: dict[Key, list[Row]] = field(default_factory=dict)
    wanted: str = ""
    found: tuple[frozenset[str], frozenset[int]] = (frozenset(), frozenset())

    def target(self, entry: Entry) -> Target | str:
        """Return the mesh that is stopped for an entry, or the reason why it cannot be stopped."""
        if entry.kind == "class":
            return "a class cannot be stopped: open it and select a mesh"
        if entry.kind in ("host", "more"):
            return "a host cannot be stopped: select a process, a mesh or an actor"
        mesh_id = entry.row.get("mesh_id", 0) if entry.kind != "mesh" else entry.row["id"]
        if entry.kind == "procs":
            mesh_id = entry.row["id"]
        if mesh_id == 0:
            return "this is the program or a host agent: exit the program instead"
        mesh = self.snapshot.meshes.get(mesh_id)
        if mesh is None:
            return f"mesh {mesh_id} is unknown: its record has been evicted"
        what = "processes" if mesh.is_of_procs else "actors"
        title = f"{mesh.name}, {mesh.row['size']} {what}"
        return Target(mesh_id, mesh.row["proc"], title)


def children(
    model: TreeModel, view: View, parent: Entry | None, len_max: int = PAGE_LEN
) -> list[Entry]:
    """Return the entries below an entry, or at the top.

    Args:
        model: The program.
        view: The selection and order.
        parent: The entry; None for the top.
        len_max: The maximum number of entries; the rest is represented by one more entry.
    """
    snapshot = model.snapshot
    if parent is None:
        found = _meshes(model, view, None) if view.is_by_mesh else _hosts(snapshot)
        return found if view.is_by_mesh is False else _page(found, ("procs", "all"), len_max)
    if parent.kind == "host":
        return _page(_procs(model, view, int(parent.key[1])), parent.key, len_max)
    if parent.kind == "procs":
        found = _meshes(model, view, int(parent.key[1]))
        return _page(found if model.wanted else _by_class(found, parent.key), parent.key, len_max)
    if parent.kind == "class":
        found = _meshes(model, view, int(parent.row["parent"]))
        found = [one for one in found if one.row["class"] == parent.title]
        return _page(found, parent.key, len_max)
    rows = model.actors.get(parent.key, [])
    return _page(
        [_actor(snapshot, row) for row in rows if _is_shown(view, row)], parent.key, len_max
    )


def _page(found: Sequence[Entry], key: Key, len_max: int) -> list[Entry]:
    shown = list(found[:len_max])
    if len(found) > len_max:
        more = Entry(("more", "/".join(key)), "press Enter for more", "plain", row={"of": key})
        shown.append(more)
    return shown


def _hosts(snapshot: Snapshot) -> list[Entry]:
    numbers = {one.host for one in snapshot.procs.values()} | set(snapshot.hosts)
    return [_host(snapshot, number, snapshot.hosts.get(number)) for number in sorted(numbers)]


def _host(snapshot: Snapshot, number: int, host: Host | None) -> Entry:
    inside = [one for one in snapshot.procs.values() if one.host == number and not one.is_over]
    row = {} if host is None else host.row
    cpu = [one.cpu_percent for one in inside if one.cpu_percent is not None]
    measures = (
        sum(cpu) if cpu else None,
        sum(one.row["rss_bytes"] or 0 for one in inside),
        sum(one.messages_s for one in inside),
    )
    name = f"host {number}" if host is None else f"{host.name} ({number})"
    note = f"{len(inside)} processes"
    if host is not None:
        note += f", load {row['load_1m']:.1f} of {row['cpus']}"
    load = sum(cpu) / (100 * row["cpus"]) if cpu and row.get("cpus") else None
    return Entry(("host", str(number)), name, "plain", note, measures, load, True, row)


def _procs(model: TreeModel, view: View, host: int) -> list[Entry]:
    found = []
    for proc in model.snapshot.procs.values():
        if proc.host != host or (proc.is_system and not view.is_system_shown):
            continue
        if view.are_stopped_hidden and proc.state == "exited":
            continue
        entry = _proc(model.snapshot, proc)
        if _matches_filter(model, entry.title) or proc.name in model.found[0]:
            found.append(entry)
    if view.sort != "name":
        at = SORTS.index(view.sort) - 1
        found.sort(key=lambda one: -((one.measures or (0, 0, 0))[at] or 0))
    else:
        found.sort(key=lambda one: one.state not in _FAILED)
    return found


def _proc(snapshot: Snapshot, proc: Proc) -> Entry:
    row = proc.row
    title = f"{row['mesh']}[{row['rank']}]" if row["mesh_id"] else str(row["mesh"])
    state = "stopped" if proc.state == "exited" else "running"
    if proc.state in ("died", "zombie"):
        state = "failed"
    elif proc.state == "stopped":
        state = "waiting"
    elif "failed" in proc.actors:
        state = "failed"
    if proc.name in {row["proc"] for cycle in snapshot.deadlocks for row in cycle}:
        state = "deadlock"
    note = f"{proc.name} pid {row['pid']}" + (f" {proc.state}" if proc.is_over else "")
    measures = (proc.cpu_percent, row["rss_bytes"], proc.messages_s)
    # It is a branch even before its actors are known, so that a key that opens it is not lost.
    load = None if proc.cpu_percent is None else proc.cpu_percent / 100
    return Entry(("proc", proc.name), title, state, note, measures, load, True, row)


def _meshes(model: TreeModel, view: View, parent: int | None) -> list[Entry]:
    snapshot = model.snapshot
    failed = _with_failed_meshes(snapshot) if parent is None else frozenset[int]()
    found = []
    for mesh in snapshot.meshes.values():
        if mesh.is_of_procs if parent is not None else not mesh.is_of_procs:
            continue
        if parent is not None and mesh.row["parent_mesh_id"] != parent:
            continue
        entry = _procs_mesh(snapshot, mesh, failed) if parent is None else _mesh(snapshot, mesh)
        if view.are_stopped_hidden and entry.state == "stopped":
            continue
        named = f"{mesh.name} {mesh.row['class']}"
        if not (_matches_filter(model, named) or _has_matching_actor(model, mesh)):
            continue
        found.append((mesh, entry))
    if view.sort == "name":
        found.sort(
            key=lambda one: (one[1].state not in _FAILED, _natural(one[0].name), one[0].number)
        )
    elif parent is None:
        at = SORTS.index(view.sort) - 1
        found.sort(key=lambda one: -((one[1].measures or (0, 0, 0))[at] or 0))
    return [entry for _, entry in found]


def _has_matching_actor(model: TreeModel, mesh: Mesh) -> bool:
    """Return whether an entry below a mesh matches the filter."""
    if not mesh.is_of_procs:
        return mesh.number in model.found[1]
    known = model.snapshot.meshes
    parents = (known[one].row["parent_mesh_id"] for one in model.found[1] if one in known)
    return mesh.number in parents


def _mesh(snapshot: Snapshot, mesh: Mesh) -> Entry:
    shape, counts = mesh.row["shape_json"], mesh.actors
    state = _state_of(counts)
    if any(row["for_mesh_id"] == mesh.number for row in _deadlocked_waits(snapshot)):
        state = "deadlock"
    counts_text = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
    note = f"{mesh.row['class']} {shape} {counts_text}"
    return Entry(("mesh", str(mesh.number)), mesh.name, state, note, is_branch=True, row=mesh.row)


def _procs_mesh(snapshot: Snapshot, mesh: Mesh, failed: Collection[int]) -> Entry:
    """Return a mesh of processes; it has failed if a process or a mesh on it has failed."""
    procs = [snapshot.procs[name] for name in snapshot.procs_of(mesh.number)]
    alive = [one for one in procs if not one.is_over]
    state = "running" if alive else "stopped"
    if mesh.number in failed or any(one.state == "died" for one in procs):
        state = "failed"
    cpu = [one.cpu_percent for one in alive if one.cpu_percent is not None]
    measures = (
        sum(cpu) if cpu else None,
        sum(one.row["rss_bytes"] or 0 for one in alive),
        sum(one.messages_s for one in alive),
    )
    load = sum(cpu) / (100 * len(cpu)) if cpu else None
    note = f"processes {mesh.row['shape_json']}, {len(alive)} of {mesh.row['size']} live"
    key = ("procs", str(mesh.number))
    return Entry(key, mesh.name, state, note, measures, load, True, mesh.row)


def _with_failed_meshes(snapshot: Snapshot) -> frozenset[int]:
    """Return the meshes of processes on which a mesh of actors has failed or is deadlocked."""
    deadlocked = {row["for_mesh_id"] for row in _deadlocked_waits(snapshot)}
    return frozenset(
        mesh.row["parent_mesh_id"]
        for mesh in snapshot.meshes.values()
        if not mesh.is_of_procs
        and (mesh.number in deadlocked or _state_of(mesh.actors) == "failed")
    )


def _by_class(found: list[Entry], parent: Key) -> list[Entry]:
    """Return many meshes grouped by class; classes with failed meshes come first."""
    if len(found) <= _FLAT_LEN_MAX:
        return found
    classes: dict[str, list[Entry]] = {}
    for entry in found:
        classes.setdefault(entry.row["class"], []).append(entry)
    shown: list[Entry] = []
    for name, entries in classes.items():
        if len(entries) < _GROUP_LEN_MIN:
            shown += entries
            continue
        failed = [one.state for one in entries if one.state in _FAILED]
        state = failed[0] if failed else "plain"
        note = f"{len(entries)} meshes" + (f", {len(failed)} failed" if failed else "")
        row = {"class": name, "parent": parent[1], "mesh_id": 0}
        key = ("class", f"{parent[1]}/{name}")
        shown.append(Entry(key, name, state, note, is_branch=True, row=row))
    return sorted(shown, key=lambda one: one.state not in _FAILED)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which `shard-2` comes before `shard-10`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _state_of(counts: dict[str, int]) -> str:
    if counts.get("failed") or counts.get("lost"):
        return "failed"
    return "stopped" if counts and set(counts) == {"stopped"} else "running"


def _actor(snapshot: Snapshot, row: Row) -> Entry:
    state = row["state"] or "running"
    if row["id"] in snapshot.waiting:
        state = "deadlock"
    note = row["class"] if state == "running" else f"{row['class']} {state}"
    state = "failed" if state == "lost" else state
    title = f"{row['display_name']}[{row['rank']}]"
    return Entry(("actor", f"{row['proc']}:{row['mesh_id']}"), title, state, note, row=row)


def _deadlocked_waits(snapshot: Snapshot) -> Iterable[Row]:
    return (row for cycle in snapshot.deadlocks for row in cycle)


def _matches_filter(model: TreeModel, text: str) -> bool:
    return model.wanted.lower() in text.lower()


def _is_shown(view: View, row: Row) -> bool:
    return not (view.are_stopped_hidden and row["state"] == "stopped")
