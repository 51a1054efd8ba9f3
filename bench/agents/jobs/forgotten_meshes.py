"""The program becomes slower with every evaluation."""

from bench.agents.broken_program import broken_program
from mesh_core import Actor, endpoint, this_host


class Evaluator(Actor):
    @endpoint
    def evaluate(self, number: int) -> int:
        return number


with broken_program():
    for number in range(6):
        procs = this_host().spawn_procs(name="evaluation")
        procs.spawn("evaluators", Evaluator).evaluate.call_one(number).get()
