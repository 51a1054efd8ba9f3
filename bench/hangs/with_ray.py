"""The hang in actors of Ray: `python with_ray.py HANG`, where Ray and PyTorch are installed."""

import sys
import time

import ray
from training import LIMIT_S, RANKS, set_environment, train


@ray.remote
class Trainer:
    """One rank."""

    def train(self, rank: int, hang: str) -> None:
        """Train."""
        set_environment(rank, 29411)
        train(hang)


if __name__ == "__main__":
    ray.init(num_cpus=RANKS, include_dashboard=False)
    began = time.monotonic()
    trainers = [Trainer.remote() for _ in range(RANKS)]
    training = [one.train.remote(rank, sys.argv[1]) for rank, one in enumerate(trainers)]
    try:
        ray.get(training, timeout=LIMIT_S)
    except Exception as error:
        print(f"after {time.monotonic() - began:.1f} s: {type(error).__name__}: {error}")
    ray.shutdown()
