"""Lose a whole machine: callers that wait for it get an error, and other hosts continue.

To run it on several machines, start workers as in 15_two_hosts.py, and pull the plug of the last
machine when the program prints "losing the last host". Without arguments the program starts two
workers on this machine and stops all processes of one of them.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time

from mesh_core import Actor, Credentials, HostDied, attach_to_workers, configure, endpoint

HEARTBEAT_S = 0.5


class Member(Actor):
    @endpoint
    def square(self, number: int) -> int:
        return number * number

    @endpoint
    def work_for_ever(self) -> None:
        time.sleep(3600)


class WorkerHere:
    """A local worker that can fail like a machine: with all its processes and without notice."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "mesh_core.worker", "--listen", "tcp://127.0.0.1:0"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.address = self.process.stdout.readline().split()[-1]

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self) -> None:
        self.signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


parser = argparse.ArgumentParser()
parser.add_argument("workers", nargs="*", help="where the workers listen, as host:port")
parser.add_argument("--credentials", help="the folder with the program's credentials")
asked = parser.parse_args()

configure(heartbeat_s=HEARTBEAT_S, host_lease_s=2, unresponsive_timeout_s=3 * HEARTBEAT_S)
here = [] if asked.workers else [WorkerHere(), WorkerHere()]
workers = asked.workers or [worker.address for worker in here]
credentials = Credentials.load(asked.credentials) if asked.credentials else None
try:
    hosts = attach_to_workers(workers, credentials=credentials)
    members = hosts.spawn_procs().spawn("members", Member)
    print("squares:", members.square.call(3).get().values())

    first, last = members.slice(hosts=0), members.slice(hosts=len(workers) - 1)
    waiting = last.work_for_ever.call_one()
    first.square.call_one(0).get()
    print("losing the last host", flush=True)
    lost = time.monotonic()
    if here:
        here[-1].signal(signal.SIGSTOP)
    try:
        waiting.get()
    except HostDied as error:
        print("lost:", error.host)
        if here:
            assert time.monotonic() - lost < 3 * HEARTBEAT_S + 2
    print("the others go on:", first.square.call_one(4).get())
    hosts.shutdown().get()
finally:
    for worker in here:
        worker.end()

# prints:
#   squares: [9, 9]
#   losing the last host
#   lost: ...
#   the others go on: 16
