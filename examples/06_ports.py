"""Send any number of values over a port, from any process, at any time.

A channel has two ends. The port can be sent in messages and used in every process; the receiver
stays in the process that opened the channel. An endpoint with an explicit response port receives
the caller's port as its first argument and may reply later: in this example, when a letter arrives.
"""

import os
import signal

from mesh_core import Actor, Channel, Port, ProcDied, current_rank, endpoint, this_host


class Sensor(Actor):
    @endpoint
    def measure(self, port: Port[tuple[int, int]], count: int) -> None:
        for n in range(count):
            port.send((current_rank().rank, n))

    @endpoint
    def keep(self, port: Port[tuple[int, int]]) -> int:
        self.port = port
        return os.getpid()


class Letterbox(Actor):
    def __init__(self) -> None:
        self.waiting: list[Port[str]] = []

    @endpoint(explicit_response_port=True)
    def next_letter(self, port: Port[str]) -> None:
        self.waiting.append(port)

    @endpoint
    def post(self, letter: str) -> None:
        self.waiting.pop(0).send(letter)


procs = this_host().spawn_procs({"n": 2})
port, receiver = Channel[tuple[int, int]].open()
sensors = procs.spawn("sensors", Sensor)
sensors.measure.broadcast(port, 3)
received = [receiver.recv().get() for _ in range(6)]
# Values from one sender arrive in the order in which it sent them.
for rank in range(2):
    assert [n for sender, n in received if sender == rank] == [0, 1, 2]
print("received", len(received), "measurements")

letterbox = procs.slice(n=0).spawn("letterbox", Letterbox)
letter = letterbox.next_letter.call_one()
letterbox.post.call_one("Dear reader, ...").get()
print(letter.get())

# A receiver is notified when a process that holds its port dies, so it never waits in vain.
os.kill(sensors.slice(n=1).keep.call_one(port).get(), signal.SIGKILL)
try:
    receiver.recv().get()
except ProcDied as died:
    print("rank", died.rank, "will send nothing any more")

# prints:
#   received 6 measurements
#   Dear reader, ...
#   rank 1 will send nothing any more
