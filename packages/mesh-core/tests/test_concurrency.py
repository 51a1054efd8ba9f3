"""Many concurrent threads and event loops, and programs that restart Mesh."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import (
    Actor,
    Channel,
    endpoint,
    this_host,
)

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_core import ProcMesh


class Echo(Actor):
    @endpoint
    def echo(self, value: Any) -> Any:
        return value

    @endpoint
    def never(self, seconds: float) -> None:
        import time

        time.sleep(seconds)


class AsyncEcho(Actor):
    @endpoint
    async def echo(self, value: Any) -> Any:
        return value


def test_many_threads_call_the_same_actor(proc: ProcMesh) -> None:
    mesh = proc.spawn("echo", Echo)

    def work(thread: int) -> bool:
        return [mesh.echo.call_one((thread, n)).get() for n in range(50)] == [
            (thread, n) for n in range(50)
        ]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))


def test_many_threads_spawn_actors_and_processes(procs: ProcMesh) -> None:
    def work(n: int) -> Any:
        if n % 4 == 0:
            with this_host().spawn_procs({"n": 1}, name=f"own{n}") as own:
                return own.spawn("echo", Echo).echo.call_one(n).get()
        mesh = procs.spawn(f"echo{n}", Echo if n % 2 else AsyncEcho)
        return next(iter(mesh.echo.call(n).get().values()))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(24))) == list(range(24))


def test_event_loops_in_several_threads_share_one_mesh(procs: ProcMesh) -> None:
    mesh = procs.spawn("echo", AsyncEcho)

    async def main(n: int) -> list[Any]:
        results = await asyncio.gather(*[mesh.echo.call((n, i)) for i in range(50)])
        return [result.get(3) for result in results]

    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda n: asyncio.run(main(n)), range(4)))
    assert runs == [[(n, i) for i in range(50)] for n in range(4)]


def test_threads_and_an_event_loop_mix_calls_broadcasts_and_channels(procs: ProcMesh) -> None:
    mesh = procs.spawn("echo", Echo)
    port, receiver = Channel[int].open()
    stop = threading.Event()

    def chatter() -> int:
        count = 0
        while not stop.is_set():
            port.send(count)
            mesh.echo.broadcast(count)
            count += 1
            if count % 20 == 0:
                mesh.echo.call(count).get()
        return count

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(chatter) for _ in range(3)]

        async def main() -> None:
            for n in range(100):
                results = await mesh.echo.call(n)
                assert list(results.values()) == [n] * 4
                await receiver.recv()

        asyncio.run(main())
        stop.set()
        receiver.close()
        assert all(future.result(20) > 0 for future in running)


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_large_bytes_survive_a_round_trip(proc: ProcMesh, kind: type[Any]) -> None:
    mesh = proc.spawn("echo", Echo)
    data = kind(b"0123456789abcdef" * (4 << 20))
    back = mesh.echo.call_one(data).get()
    assert type(back) is kind
    assert back == data


def test_large_arrays_arrive_as_writable_private_copies(proc: ProcMesh) -> None:
    numpy = pytest.importorskip("numpy")

    class Keeper(Actor):
        @endpoint
        def keep(self, array: Any) -> Any:
            self.array = array
            return array

        @endpoint
        def write(self) -> int:
            self.array[:] = 7
            return int(self.array.sum())

        @endpoint
        def first(self) -> int:
            return int(self.array[0])

    mesh = proc.spawn("keeper", Keeper)
    sent = numpy.arange(8 << 20, dtype=numpy.int64)
    back = mesh.keep.call_one(sent).get()
    assert numpy.array_equal(back, sent)
    back[0] = 99
    sent[0] = 55
    assert mesh.first.call_one().get() == 0
    assert mesh.write.call_one().get() == 7 * (8 << 20)
    assert (back[0], back[1], sent[1]) == (99, 1, 1)


PROGRAM = """
import asyncio, gc, sys, threading
from mesh_core import *

class Echo(Actor):
    @endpoint
    def echo(self, value): return value
    @endpoint
    def sleep(self, seconds):
        import time
        time.sleep(seconds)

def run():
    procs = this_host().spawn_procs({"n": 2})
    mesh = procs.spawn("echo", Echo)
    assert list(mesh.echo.call(1).get().values()) == [1, 1]
    return procs, mesh

"""


def run_program(tmp_path: Path, body: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM + "if __name__ == '__main__':\n" + textwrap.indent(body, "    "))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_can_shut_down_and_start_again(tmp_path: Path) -> None:
    body = """
for _ in range(3):
    run()
    shutdown_context().get()
    shutdown_context().get()

async def main():
    for _ in range(2):
        procs, mesh = run()
        assert list((await mesh.echo.call(2)).values()) == [2, 2]
        await shutdown_context()
asyncio.run(main())
print("done")
"""
    assert run_program(tmp_path, body) == "done\n"


def test_handles_of_a_finished_job_raise_and_do_not_affect_a_later_job(tmp_path: Path) -> None:
    body = """
procs, mesh = run()
part = mesh.slice(n=0)
pending = mesh.echo.call(3)
stuck = part.sleep.call_one(30)
port, receiver = Channel.open()
waiting = receiver.recv()
outcome = []
thread = threading.Thread(target=lambda: outcome.append(stuck.exception()))
thread.start()
shutdown_context(host_timeout=0.5).get()
thread.join(10)
assert isinstance(outcome[0], SupervisionError), outcome
def looks():
    for call in (lambda: mesh.echo.call(1).get(), lambda: part.echo.call_one(1).get(),
                 lambda: mesh.slice(n=1).echo.call_one(1).get(),
                 lambda: mesh.echo.broadcast(1), lambda: procs.spawn("x", Echo),
                 lambda: procs.slice(n=0).spawn("x", Echo), lambda: mesh.initialized.get()):
        try:
            call()
        except MeshStopped as error:
            pass
        else:
            raise AssertionError("no error")
    assert mesh.stop().get() is None
    assert procs.stop().get() is None
    try:
        waiting.get()
    except ChannelClosed:
        pass
    else:
        raise AssertionError("not closed")
    try:
        port.send(1)
    except ChannelClosed:
        pass
    pending.exception()
looks()
new = run()
looks()
assert list(new[1].echo.call(4).get().values()) == [4, 4]
del mesh, part, procs, pending, receiver, waiting
gc.collect()
assert list(new[1].echo.call(5).get().values()) == [5, 5]
print("done")
"""
    assert run_program(tmp_path, body) == "done\n"
