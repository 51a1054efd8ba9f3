"""Spawn an actor in each of four processes and call all of them at once.

An actor is an object in a separate process. `spawn` returns a mesh handle that represents all four
actors: a call of an endpoint runs in each of them, and the result contains one value per actor.
"""

from mesh_core import Actor, current_rank, endpoint, this_host


class Greeter(Actor):
    def __init__(self, greeting: str) -> None:
        self.greeting = greeting
        self.count = 0

    @endpoint
    def greet(self, name: str) -> str:
        self.count += 1
        return f"{self.greeting}, {name}! greeting {self.count} of rank {current_rank().rank}"


procs = this_host().spawn_procs({"gpus": 4})
greeters = procs.spawn("greeters", Greeter, "Hello")

greetings = greeters.greet.call("world").get()
for point, greeting in greetings.items():
    print(f"{point}: {greeting}")
assert len(greetings) == 4

# An actor keeps its state between calls.
again = greeters.greet.call("again").get()
assert again.item(gpus=2) == "Hello, again! greeting 2 of rank 2"
print(again.item(gpus=2))

# prints:
#   {'gpus': 0/4}: Hello, world! greeting 1 of rank 0
#   {'gpus': 3/4}: Hello, world! greeting 1 of rank 3
#   Hello, again! greeting 2 of rank 2
