"""Exchange messages between two meshes: each actor plays with the actor of the same rank.

The first part calls all actors of one mesh at once, and then each of them separately, without
waiting for one call before the next.
"""

from mesh_core import Actor, current_rank, endpoint, this_host


class Listener(Actor):
    def __init__(self) -> None:
        self.rank = current_rank().rank

    @endpoint
    def hear(self, message: str) -> str:
        return f"rank {self.rank} heard {message!r}"


class Player(Actor):
    def __init__(self, name: str) -> None:
        self.name = f"{name} {current_rank().rank}"

    @endpoint
    def face(self, others: "Player") -> None:
        self.opponent = others.slice(**current_rank())

    @endpoint
    def ping(self) -> str:
        return self.opponent.pong.call_one(self.name).get()

    @endpoint
    def pong(self, sender: str) -> str:
        return f"{self.name} returned the ball of {sender}"


listeners = this_host().spawn_procs({"gpus": 4}).spawn("listeners", Listener)
for heard in listeners.hear.call("hello, all").get().values():
    print(heard)

calls = [listeners.slice(gpus=n).hear.call_one(f"hello, number {n}") for n in range(4)]
for call in calls:
    print(call.get())

left = this_host().spawn_procs({"gpus": 2}).spawn("left", Player, "left")
right = this_host().spawn_procs({"gpus": 2}).spawn("right", Player, "right")
left.face.call(right).get()
right.face.call(left).get()
for side in (left, right):
    for result in side.ping.call().get().values():
        print(result)

# prints:
#   rank 0 heard 'hello, all'
#   rank 3 heard 'hello, all'
#   rank 0 heard 'hello, number 0'
#   rank 3 heard 'hello, number 3'
#   right 0 returned the ball of left 0
#   right 1 returned the ball of left 1
#   left 0 returned the ball of right 0
#   left 1 returned the ball of right 1
