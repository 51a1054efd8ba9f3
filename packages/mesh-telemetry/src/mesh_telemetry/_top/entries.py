"""What stands in the tree: hosts, processes, meshes and actors, as they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mesh_telemetry._top.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mesh_telemetry._top.snapshot import Host, Mesh, Proc, Row

__all__ = ["PAGE_LEN", "SORTS", "Entry", "Key", "Picture", "Target", "View", "children"]

#: How many lines of a branch are shown at once; the next follow when they are asked for.
PAGE_LEN = 100
SORTS = ("name", "cpu", "memory", "messages")

#: What it is, and which: the same from one look to the next.
Key = tuple[str, str]


class Target(NamedTuple):
    """A mesh that can be stopped: its number, its owner, and what it is called."""

    mesh_id: int
    proc: str
    title: str


@dataclass(frozen=True)
class View:
    """What of a program is to be seen, and in which order."""

    is_by_mesh: bool = False
    wanted: str = ""
    sort: str = "name"
    is_system_shown: bool = False
    are_stopped_hidden: bool = False


@dataclass(frozen=True)
class Entry:
    """A line of the tree.

    Attributes:
        key: What it stands for.
        title: What is written.
        state: `running`, `waiting`, `stopped`, `failed`, `deadlock`, or `plain`.
        note: What is written behind the title.
        measures: Processor in percent, memory in bytes, messages a second.
        is_branch: Whether something may be below.
        row: What was said of it.
    """

    key: Key
    title: str
    state: str
    note: str = ""
    measures: tuple[float | None, int | None, float | None] | None = None
    is_branch: bool = False
    row: Row = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """What it is: `host`, `proc`, `procs`, `mesh`, `actor`, or `more`."""
        return self.key[0]


@dataclass(frozen=True)
class Picture:
    """A program at one moment, and the actors of the branches that are open.

    Attributes:
        snapshot: The program.
        actors: The rows of actors below a branch, as many as are shown and one more.
        wanted: What was looked for when it was asked for; nothing else is shown until that is.
        found: Processes and meshes in which there are actors like that.
    """

    snapshot: Snapshot
    actors: dict[Key, list[Row]] = field(default_factory=dict)
    wanted: str = ""
    found: tuple[frozenset[str], frozenset[int]] = (frozenset(), frozenset())

    def target(self, entry: Entry) -> Target | str:
        """Gives what is stopped of an entry, or why nothing can be."""
        if entry.kind in ("host", "more"):
            return "a host cannot be stopped: choose a process, a mesh or an actor"
        mesh_id = entry.row.get("mesh_id", 0) if entry.kind != "mesh" else entry.row["id"]
        if entry.kind == "procs":
            mesh_id = entry.row["id"]
        if mesh_id == 0:
            return "this is the program, or what looks after a host: end the program itself"
        mesh = self.snapshot.meshes.get(mesh_id)
        if mesh is None:
            return f"nobody has told of mesh {mesh_id}: it was spawned too long ago"
        what = "processes" if mesh.is_of_procs else "actors"
        title = f"{mesh.name}, {mesh.row['size']} {what}"
        return Target(mesh_id, mesh.row["proc"], title)


def children(
    picture: Picture, view: View, parent: Entry | None, len_max: int = PAGE_LEN
) -> list[Entry]:
    """Gives what stands below an entry, or at the top.

    Args:
        picture: The program.
        view: What of it.
        parent: The entry; None for the top.
        len_max: How many of them; behind those comes an entry that stands for the rest.
    """
    snapshot = picture.snapshot
    if parent is None:
        found = _meshes(picture, view, None) if view.is_by_mesh else _hosts(snapshot)
        return found if view.is_by_mesh is False else _page(found, ("procs", "all"), len_max)
    if parent.kind == "host":
        return _page(_procs(picture, view, int(parent.key[1])), parent.key, len_max)
    if parent.kind == "procs":
        return _page(_meshes(picture, view, int(parent.key[1])), parent.key, len_max)
    rows = picture.actors.get(parent.key, [])
    return _page([_actor(snapshot, row) for row in rows if _fits(view, row)], parent.key, len_max)


def _page(found: Sequence[Entry], key: Key, len_max: int) -> list[Entry]:
    shown = list(found[:len_max])
    if len(found) > len_max:
        more = Entry(("more", "/".join(key)), "more: press Enter", "plain", row={"of": key})
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
    return Entry(("host", str(number)), name, "plain", note, measures, True, row)


def _procs(picture: Picture, view: View, host: int) -> list[Entry]:
    found = []
    for proc in picture.snapshot.procs.values():
        if proc.host != host or (proc.is_system and not view.is_system_shown):
            continue
        if view.are_stopped_hidden and proc.state == "ended":
            continue
        entry = _proc(picture.snapshot, proc)
        if _is_wanted(picture, entry.title) or proc.name in picture.found[0]:
            found.append((entry, proc))
    if view.sort != "name":
        at = SORTS.index(view.sort) - 1
        found.sort(key=lambda one: -((one[0].measures or (0, 0, 0))[at] or 0))
    return [entry for entry, _ in found]


def _proc(snapshot: Snapshot, proc: Proc) -> Entry:
    row = proc.row
    title = f"{row['mesh']}[{row['rank']}]" if row["mesh_id"] else str(row["mesh"])
    state = "stopped" if proc.state == "ended" else "running"
    if proc.state in ("died", "zombie"):
        state = "failed"
    elif proc.state == "stopped":
        state = "waiting"
    elif "failed" in proc.actors:
        state = "failed"
    if proc.name in {row["proc"] for circle in snapshot.deadlocks for row in circle}:
        state = "deadlock"
    note = f"{proc.name} pid {row['pid']}" + (f" {proc.state}" if proc.is_over else "")
    measures = (proc.cpu_percent, row["rss_bytes"], proc.messages_s)
    # A branch even if no actors are known yet: a key that opens it must not be lost.
    return Entry(("proc", proc.name), title, state, note, measures, True, row)


def _meshes(picture: Picture, view: View, parent: int | None) -> list[Entry]:
    snapshot = picture.snapshot
    found = []
    for mesh in snapshot.meshes.values():
        if mesh.is_of_procs if parent is not None else not mesh.is_of_procs:
            continue
        if parent is not None and mesh.row["parent_mesh_id"] != parent:
            continue
        entry = _mesh(snapshot, mesh)
        if view.are_stopped_hidden and entry.state == "stopped":
            continue
        named = f"{mesh.name} {mesh.row['class']}"
        if not (_is_wanted(picture, named) or _holds(picture, mesh)):
            continue
        found.append((mesh, entry))
    if view.sort == "name":
        found.sort(key=lambda one: (one[0].name, one[0].number))
    elif parent is None:
        at = SORTS.index(view.sort) - 1
        found.sort(key=lambda one: -((one[1].measures or (0, 0, 0))[at] or 0))
    return [entry for _, entry in found]


def _holds(picture: Picture, mesh: Mesh) -> bool:
    """Says whether there is something below a mesh that is looked for."""
    if not mesh.is_of_procs:
        return mesh.number in picture.found[1]
    known = picture.snapshot.meshes
    parents = (known[one].row["parent_mesh_id"] for one in picture.found[1] if one in known)
    return mesh.number in parents


def _mesh(snapshot: Snapshot, mesh: Mesh) -> Entry:
    shape = mesh.row["shape_json"]
    if not mesh.is_of_procs:
        counts = mesh.actors
        state = _state_of(counts)
        if any(row["for_mesh_id"] == mesh.number for row in _in_circles(snapshot)):
            state = "deadlock"
        said = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
        note = f"{mesh.row['class']} {shape} {said}"
        return Entry(("mesh", str(mesh.number)), mesh.name, state, note, None, True, mesh.row)
    procs = [snapshot.procs[name] for name in snapshot.procs_of(mesh.number)]
    living = [one for one in procs if not one.is_over]
    state = "running" if living else "stopped"
    if any(one.state == "died" for one in procs):
        state = "failed"
    cpu = [one.cpu_percent for one in living if one.cpu_percent is not None]
    measures = (
        sum(cpu) if cpu else None,
        sum(one.row["rss_bytes"] or 0 for one in living),
        sum(one.messages_s for one in living),
    )
    note = f"processes {shape}, {len(living)} of {mesh.row['size']} live"
    return Entry(("procs", str(mesh.number)), mesh.name, state, note, measures, True, mesh.row)


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


def _in_circles(snapshot: Snapshot) -> Iterable[Row]:
    return (row for circle in snapshot.deadlocks for row in circle)


def _is_wanted(picture: Picture, text: str) -> bool:
    return picture.wanted.lower() in text.lower()


def _fits(view: View, row: Row) -> bool:
    return not (view.are_stopped_hidden and row["state"] == "stopped")
