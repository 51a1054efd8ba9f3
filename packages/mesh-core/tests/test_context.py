"""The running context: rank and size in the called mesh, the actor, its tasks and threads."""

from __future__ import annotations

import asyncio
import contextvars
import os
import pickle
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import Actor, Context, context, current_rank, endpoint, this_host, this_proc
from mesh_core.compat import current_actor_name, current_size

if TYPE_CHECKING:
    from mesh_core import ProcMesh


class Who(Actor):
    """Returns its context."""

    def __init__(self) -> None:
        self.rank_at_start = dict(current_rank())
        self.size_at_start = current_size()

    @endpoint
    def at_start(self) -> Any:
        return self.rank_at_start, self.size_at_start

    @endpoint
    def where(self) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
        own = context().actor_instance.rank
        return dict(current_rank()), current_size(), dict(own)

    @endpoint
    def message_rank(self) -> Any:
        return context().message_rank

    @endpoint
    def itself(self) -> dict[str, Any]:
        me = context().actor_instance
        return {
            "name": me.name,
            "class_name": me.class_name,
            "actor_id": me.actor_id,
            "proc_id": me.proc_id,
            "creator": me.creator,
            "repr": repr(me),
            "current": current_actor_name(),
            "proc": me.proc,
            "proc_mesh": me.proc_mesh,
        }

    @endpoint
    def thread_ids(self) -> tuple[int, bool]:
        is_main = threading.current_thread() is threading.main_thread()
        return threading.get_ident(), is_main

    @endpoint
    def in_threads(self) -> list[Any]:
        found: list[Any] = []

        def look() -> None:
            found.append(dict(current_rank()))

        copied = contextvars.copy_context()
        for target in (look, lambda: copied.run(look)):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        return found

    @endpoint
    def call_from_thread(self, other: Who) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(other.where.call_one().get()))
        thread.start()
        thread.join()
        return found[0]

    @endpoint
    def pid(self) -> int:
        return os.getpid()


class WhoAsync(Actor):
    @endpoint
    async def in_tasks(self) -> list[Any]:
        async def look() -> Any:
            await asyncio.sleep(0)
            return dict(current_rank()), current_size()

        inner = await asyncio.gather(look(), asyncio.create_task(look()))
        there = await asyncio.to_thread(lambda: (dict(current_rank()), current_size()))
        return [*inner, there]

    @endpoint
    def plain(self) -> Any:
        return dict(current_rank()), current_size()


def test_rank_and_size_refer_to_the_called_slice(procs: ProcMesh) -> None:
    mesh = procs.split(gpus=("a", "b"), a=2).spawn("who", Who)
    whole = list(mesh.where.call().get().values())
    assert whole[3] == ({"a": 1, "b": 1}, {"a": 2, "b": 2}, {"a": 1, "b": 1})
    column = list(mesh.slice(b=1).where.call().get().values())
    assert column == [
        ({"a": 0}, {"a": 2}, {"a": 0, "b": 1}),
        ({"a": 1}, {"a": 2}, {"a": 1, "b": 1}),
    ]
    one = mesh.slice(a=1, b=0).where.call_one().get()
    assert one == ({}, {}, {"a": 1, "b": 0})
    chosen = mesh.where.choose().get()
    assert chosen[0] == chosen[2]
    starts = list(mesh.at_start.call().get().values())
    assert starts[2] == ({"a": 1, "b": 0}, {"a": 2, "b": 2})


def test_the_message_rank_is_the_point_of_the_reply(procs: ProcMesh) -> None:
    mesh = procs.spawn("who", Who)
    for point, value in mesh.slice(gpus=[3, 1]).message_rank.call().get():
        assert point == value


def test_the_context_describes_the_running_actor(procs: ProcMesh) -> None:
    mesh = procs.spawn("who", Who)
    found = mesh.slice(gpus=2).itself.call_one().get()
    assert found["name"] == "who"
    assert found["class_name"] == "Who"
    assert found["actor_id"] == found["current"]
    assert found["actor_id"].startswith(found["proc_id"] + ":")
    assert found["creator"] == current_actor_name()
    assert "Who" in found["repr"]
    assert found["proc_mesh"] == procs
    assert found["proc"] == procs.slice(gpus=2)


def test_the_program_runs_in_the_root_context() -> None:
    me = context().actor_instance
    assert (me.name, repr(me), dict(me.rank)) == ("root", "<root>", {})
    assert dict(current_rank()) == {}
    assert current_size() == {}
    assert dict(context().message_rank) == {}
    with pytest.raises(RuntimeError, match="not an actor"):
        me.stop()
    with pytest.raises(TypeError):
        pickle.dumps(context())
    assert isinstance(context(), Context)


def test_sync_endpoints_run_on_one_thread_other_than_the_main_thread(proc: ProcMesh) -> None:
    mesh = proc.spawn("who", Who)
    seen = {mesh.thread_ids.call_one().get() for _ in range(5)}
    assert len(seen) == 1
    assert not next(iter(seen))[1]


def test_tasks_inherit_the_context_and_threads_need_copy_context(procs: ProcMesh) -> None:
    mesh = procs.slice(gpus=slice(0, 2)).spawn("who", WhoAsync)
    for point, found in mesh.in_tasks.call().get():
        assert found == [(dict(point), {"gpus": 2})] * 3
    assert mesh.plain.call().get().item(gpus=1) == ({"gpus": 1}, {"gpus": 2})
    who = procs.spawn("who", Who)
    assert who.in_threads.call().get().item(gpus=3) == [{}, {"gpus": 3}]


def test_a_thread_started_by_an_endpoint_can_call_other_actors(procs: ProcMesh) -> None:
    mesh = procs.spawn("who", Who)
    first, second = mesh.slice(gpus=0), mesh.slice(gpus=1)
    assert first.call_from_thread.call_one(second).get()[2] == {"gpus": 1}


def test_this_proc_spawns_actors_in_the_process_of_the_program(procs: ProcMesh) -> None:
    local = this_proc().spawn("who", Who)
    assert local.pid.call_one().get() == os.getpid()
    assert local.where.call_one().get() == ({}, {}, {})
    remote = procs.slice(gpus=1).spawn("who", Who)
    assert local.call_from_thread.call_one(remote).get() == ({}, {}, {})
    local.stop().get()


def test_this_host_has_no_dimensions_and_one_host() -> None:
    host = this_host()
    assert (dict(host.extent), len(host)) == ({}, 1)
    assert host.initialized.get() is True


def test_reading_ranks_does_not_start_the_runtime() -> None:
    code = (
        "import mesh_core.compat, mesh_core._runtime.runtime as r; mesh_core.current_rank();"
        "mesh_core.compat.current_size(); print(r.is_running())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
