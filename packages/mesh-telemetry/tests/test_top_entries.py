"""The tree of `mesh top` with many meshes, its bars, and the text of stacks."""

from __future__ import annotations

from typing import Any

from mesh_telemetry._top.entries import TreeModel, View, children
from mesh_telemetry._top.snapshot import Mesh, Snapshot
from mesh_telemetry._top.stack_lines import stack_text
from mesh_telemetry._top.tree import bar

BY_MESH = View(is_by_mesh=True)


def mesh(number: int, name: str, kind: str, parent: int | None, **actors: int) -> Mesh:
    row = {"id": number, "class": kind, "parent_mesh_id": parent, "shape_json": "{}", "size": 1}
    return Mesh(number, name, row, actors)


def model_of(*meshes: Mesh, wanted: str = "") -> TreeModel:
    snapshot = Snapshot(0.0, meshes={one.number: one for one in meshes})
    return TreeModel(snapshot, wanted=wanted)


def test_meshes_of_processes_with_a_failed_mesh_come_first() -> None:
    procs = [mesh(at, f"host-{at}", "Proc", None) for at in range(1, 301)]
    actors = [mesh(1000 + at, "shard", "Shard", at, running=1) for at in range(1, 300)]
    failed = mesh(1300, "shard", "Shard", 300, failed=1)
    shown = children(model_of(*procs, *actors, failed), BY_MESH, None)
    assert [one.title for one in shown[:3]] == ["host-300", "host-1", "host-2"]
    assert shown[0].state == "failed"
    assert shown[-1].kind == "more"


def test_many_meshes_are_grouped_by_class_with_failed_ones_first() -> None:
    shards = [mesh(at, f"shard-{at}", "Shard", 1, running=1) for at in range(2, 302)]
    failed = mesh(400, "shard-400", "Shard", 1, running=3, failed=1)
    few = [mesh(500 + at, f"loader-{at}", "Loader", 1, running=1) for at in range(2)]
    model = model_of(mesh(1, "procs", "Proc", None), *shards, failed, *few)
    (procs,) = children(model, BY_MESH, None)
    shown = children(model, BY_MESH, procs)
    assert [one.title for one in shown] == ["Shard", "loader-0", "loader-1"]
    assert (shown[0].state, shown[0].note) == ("failed", "301 meshes, 1 failed")
    inside = children(model, BY_MESH, shown[0], 3)
    assert [one.title for one in inside[:3]] == ["shard-400", "shard-2", "shard-3"]
    assert isinstance(model.target(shown[0]), str)


def test_a_filter_shows_meshes_without_groups() -> None:
    shards = [mesh(at, f"shard-{at}", "Shard", 1, running=1) for at in range(2, 302)]
    model = model_of(mesh(1, "procs", "Proc", None), *shards, wanted="shard-30")
    found = TreeModel(model.snapshot, wanted="shard-30", found=(frozenset(), frozenset({30})))
    (procs,) = children(found, BY_MESH, None)
    titles = [one.title for one in children(found, BY_MESH, procs)]
    assert titles == ["shard-30", "shard-300", "shard-301"]


def test_the_length_of_a_bar_is_proportional_to_its_value() -> None:
    assert [bar(part, 4) for part in (None, 0.0, 0.3, 1.0, 7.0)] == [
        "    ",
        "    ",
        "█▎  ",
        "████",
        "████",
    ]


def test_frames_of_the_program_come_first() -> None:
    def frame(thread: int, function: str, file: str) -> dict[str, Any]:
        thread_of = {"proc": "0.1", "thread": f"thread {thread}", "thread_id": thread}
        return {
            **thread_of,
            "task": None,
            "task_id": None,
            "function": function,
            "file": file,
            "line": 7,
        }

    rows = [
        frame(1, "wait", "/usr/lib/python3.11/threading.py"),
        frame(2, "wait", "/usr/lib/python3.11/threading.py"),
        frame(2, "get", "/opt/mesh_core/future.py"),
        frame(2, "step", "/data/srv/job/train.py"),
        frame(2, "<module>", "<string>"),
    ]
    assert stack_text(rows).plain.splitlines() == [
        "0.1 thread 2  in wait  lib/python3.11/threading.py:7",
        "  step  srv/job/train.py:7",
        "  3 frames of Python and Mesh",
        "0.1 thread 1  in wait  lib/python3.11/threading.py:7",
        "  1 frame of Python and Mesh",
    ]
