"""The mean of the data is wrong; each rank prints the shard that it reads."""

from bench.agents.broken_program import broken_program
from mesh_core import Actor, current_rank, endpoint, this_host


class Reader(Actor):
    @endpoint
    def read(self) -> None:
        rank = current_rank().rank
        print(f"reads shard {rank if rank != 3 else 1}", flush=True)


with broken_program():
    readers = this_host().spawn_procs({"n": 4}, name="data").spawn("readers", Reader)
    readers.read.call().get()
