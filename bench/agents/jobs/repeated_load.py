"""Each step loads a file; the same one is loaded again and again."""

from bench.agents.broken_program import broken_program
from mesh_core import Actor, endpoint, span, this_host


class Trainer(Actor):
    @endpoint
    def step(self, number: int) -> None:
        names = ["vocabulary.json", f"part-{number}.npy"]
        for name in names:
            with span("load", {"file": name}):
                pass


with broken_program():
    trainer = this_host().spawn_procs(name="train").spawn("trainer", Trainer)
    for number in range(30):
        trainer.step.call_one(number).get()
