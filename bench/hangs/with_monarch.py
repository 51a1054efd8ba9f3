"""The hang in actors of Monarch: `python with_monarch.py HANG`, where both are installed."""

import os
import sys
import time

from monarch.actor import Actor, current_rank, endpoint, this_host
from training import LIMIT_S, RANKS, set_environment, train


class Trainer(Actor):
    """One rank."""

    @endpoint
    def train(self, hang: str) -> None:
        """Train."""
        set_environment(current_rank().rank, 29412)
        train(hang)


if __name__ == "__main__":
    began = time.monotonic()
    trainers = this_host().spawn_procs(per_host={"gpus": RANKS}).spawn("trainers", Trainer)
    try:
        trainers.train.call(sys.argv[1]).get(timeout=LIMIT_S)
    except Exception as error:
        print(f"after {time.monotonic() - began:.1f} s: {type(error).__name__}: {error}")
    # The stopped rank would keep the program alive.
    os._exit(0)
