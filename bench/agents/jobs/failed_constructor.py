"""Actors are created on four ranks; the mesh cannot be used."""

from contextlib import suppress

from bench.agents.broken_program import broken_program
from mesh_core import Actor, SupervisionError, current_rank, endpoint, this_host


class Shard(Actor):
    def __init__(self, parts: list[str]) -> None:
        self.part = parts[current_rank().rank]

    @endpoint
    def name(self) -> str:
        return self.part


with broken_program():
    procs = this_host().spawn_procs({"n": 4}, name="store")
    with suppress(SupervisionError, IndexError):
        procs.spawn("shards", Shard, ["a", "b", "c"]).name.call().get()
