"""Handle failures that no caller waits for: they are reported to the owner of the mesh.

An actor that spawns others owns them. If one of them fails and no caller waits for its reply, Mesh
calls `__supervise__` of the owner. A true result means that the failure is handled. Otherwise the
owner fails, too, and its own owner is notified. A failure that no owner handles reaches the
program, which then exits with a report.
"""

from mesh_core import Actor, Channel, MeshFailure, Port, endpoint, this_host


class Worker(Actor):
    @endpoint
    def work(self, item: str) -> None:
        if not item.isascii():
            raise ValueError(f"cannot work on {item!r}")

    def __cleanup__(self, error: Exception | None) -> None:
        print("worker cleans up after", type(error).__name__, flush=True)


class Foreman(Actor):
    def __init__(self, told: Port[str]) -> None:
        self.told = told
        self.workers = this_host().spawn_procs({"n": 3}).spawn("workers", Worker)

    @endpoint
    def hand_out(self, item: str) -> None:
        self.workers.slice(n=1).work.broadcast(item)

    def __supervise__(self, failure: MeshFailure) -> bool:
        self.told.send(f"rank {failure.rank} of {failure.mesh_name!r}: {failure.error.__cause__}")
        return True

    @endpoint
    def healthy(self) -> int:
        return len(self.workers.slice(n=[0, 2]).work.call("a").get())


port, told = Channel[str].open()
foreman = this_host().spawn_procs().spawn("foreman", Foreman, port)

foreman.hand_out.call_one("ascii").get()
foreman.hand_out.call_one("¡no!").get()
report = told.recv().get()
print(report.splitlines()[0])
assert "rank 1 of 'workers'" in report
assert foreman.healthy.call_one().get() == 2
print("two workers go on, and so does the foreman")

# prints:
#   rank 1 of 'workers': cannot work on '¡no!'
#   two workers go on, and so does the foreman
