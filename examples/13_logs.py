"""Forward the output of all processes to the program, in order and labelled with mesh and rank.

The output of `print`, `logging` and C libraries appears in the output of the program. If several
ranks print the same line at almost the same time, it is shown once, and once more for all other
ranks together. Lines that differ are never merged. The error about a dead process contains its last
lines.
"""

import os
import sys

from mesh_core import Actor, ProcDied, current_rank, endpoint, this_host


class Talker(Actor):
    @endpoint
    def talk(self) -> None:
        print(f"my share is {current_rank().rank}/{current_rank().extent.nelements}")
        self.logger.warning("this came from logging")
        print("and this from stderr", file=sys.stderr)

    @endpoint
    def get_ready(self) -> None:
        print("ready")

    @endpoint
    def crash(self) -> None:
        print("the disk is full", file=sys.stderr)
        os._exit(28)


procs = this_host().spawn_procs({"gpus": 4}, name="talkers")
talkers = procs.spawn("talkers", Talker)
talkers.talk.call().get()
talkers.get_ready.call().get()

try:
    talkers.slice(gpus=1).crash.call_one().get()
except ProcDied as died:
    print("the last words of rank", died.rank, "were:", died.log_tail[-1])
    assert died.log_tail[-1] == "the disk is full"
    assert "my share is 1/4" in died.log_tail
    assert died.exit_code == 28

# `stop` returns after all output has been shown.
procs.stop().get()

# prints:
#   [talkers{gpus: 1/4}] my share is 1/4
#   the last words of rank 1 were: the disk is full
