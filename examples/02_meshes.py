"""Give processes, actors and results a shape with named dimensions, and change the shape.

A mesh is an array with named dimensions. `split`, `flatten` and `rename` return other views of the
same members. The result of a call has the shape of the mesh that was called.
"""

import os

from mesh_core import Actor, current_rank, endpoint, this_host


class Worker(Actor):
    @endpoint
    def where(self) -> str:
        replica, stage = current_rank()["replica"], current_rank()["stage"]
        return f"replica {replica} of {current_rank().extent['replica']}, stage {stage}"

    @endpoint
    def pid(self) -> int:
        return os.getpid()


procs = this_host().spawn_procs({"replica": 2, "stage": 3})
workers = procs.spawn("workers", Worker)
print(workers.extent, len(workers))
assert workers.sizes == {"replica": 2, "stage": 3}

places = workers.where.call().get()
assert places.item(replica=1, stage=2) == "replica 1 of 2, stage 2"
print(places.item(replica=1, stage=2))

# These views have other shapes and contain the same six processes.
line = workers.flatten("rank")
grid = line.split(rank=("row", "column"), column=2)
renamed = workers.rename(replica="copy")
print(line.extent, grid.extent, renamed.extent)
pids = workers.pid.call().get().values()
assert list(line.pid.call().get().values()) == list(pids)
assert list(grid.pid.call().get().values()) == list(pids)
assert len(set(pids)) == 6

# Iterating over a mesh yields its members, each as a mesh of size one.
assert [member.pid.call_one().get() for member in line] == list(pids)

# prints:
#   {replica: 2, stage: 3} 6
#   replica 1 of 2, stage 2
#   {rank: 6} {row: 3, column: 2} {copy: 2, stage: 3}
