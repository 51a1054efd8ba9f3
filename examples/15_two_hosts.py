"""Use two machines from one program: attach workers as hosts, and spawn meshes across both.

Start a worker on each of the other machines, with credentials that
`python3 -m mesh_core.credentials keys w0 w1` creates:

    python3 -m mesh_core.worker --listen 'tcp://*:26600' --credentials keys/w0

Start the program on this machine:

    python3 15_two_hosts.py --credentials keys/controller w0:26600 w1:26600

Without arguments the program starts two workers on this machine.
"""

import argparse
import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

from mesh_core import Actor, Credentials, attach_to_workers, current_rank, endpoint


class Member(Actor):
    @endpoint
    def where(self) -> str:
        return socket.gethostname()

    @endpoint
    def square(self, number: int) -> int:
        return number * number

    @endpoint
    def ask(self, others: "Member", number: int) -> int:
        """Call the actor with the same coordinate in `procs` on another machine."""
        return others.slice(procs=current_rank()["procs"]).square.call_one(number).get()


@contextlib.contextmanager
def worker_here() -> Iterator[str]:
    """Run a worker on this machine, on a free port that the worker prints."""
    command = [sys.executable, "-m", "mesh_core.worker", "--listen", "tcp://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        try:
            yield worker.stdout.readline().split()[-1]
        finally:
            worker.terminate()


parser = argparse.ArgumentParser()
parser.add_argument("workers", nargs="*", help="where the workers listen, as host:port")
parser.add_argument("--credentials", help="the folder with the program's credentials")
parser.add_argument("--gateway", help="a worker that passes on what the others are sent")
asked = parser.parse_args()

with contextlib.ExitStack() as stack:
    workers = asked.workers or [stack.enter_context(worker_here()) for _ in range(2)]
    credentials = Credentials.load(asked.credentials) if asked.credentials else None

    with attach_to_workers(workers, credentials=credentials, gateway=asked.gateway) as hosts:
        print("hosts:", hosts.extent)
        members = hosts.spawn_procs({"procs": 2}).spawn("members", Member)
        print("actors:", members.extent)
        names = members.where.call().get()
        print("the first runs on", names.values()[0])
        print("squares:", members.square.call(3).get().values())
        first, last = members.slice(hosts=0), members.slice(hosts=len(workers) - 1)
        print("asked from machine to machine:", first.ask.call(last, 5).get().values())

# prints:
#   hosts: {hosts: 2}
#   actors: {hosts: 2, procs: 2}
#   the first runs on ...
#   squares: [9, 9, 9, 9]
#   asked from machine to machine: [25, 25]
