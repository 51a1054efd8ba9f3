"""A small request takes long, because it contains a large object."""

from bench.agents.broken_program import broken_program
from mesh_core import Actor, endpoint, this_host


class Model(Actor):
    @endpoint
    def predict(self, number: int) -> int:
        return number

    @endpoint
    def configure(self, table: list[str]) -> int:
        return len(table)


with broken_program():
    model = this_host().spawn_procs(name="models").spawn("model", Model)
    for number in range(20):
        model.predict.call_one(number).get()
        model.configure.call_one([f"word {n}" for n in range(2000)]).get()
