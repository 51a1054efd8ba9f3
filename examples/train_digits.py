"""Trains a network on handwritten digits over several processes, one of which is killed on the way.

Every process holds the same network and a share of the images. A step asks each for the gradient
of its next images, averages what they answer, and has each apply the average. In the middle of an
epoch one process gets a SIGKILL: it is replaced, takes its state from a survivor, and training goes
on. Recovery is a dozen lines of this script, because a death is an exception that can be caught.
"""

import argparse
import os
import signal
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from mesh_core import Actor, ProcDied, ProcMesh, context, endpoint, this_host

BATCH = 64


class Trainer(Actor):
    def __init__(self, images: Tensor, labels: Tensor, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        rank = context().actor_instance.rank
        mine = slice(rank.rank, None, rank.extent.nelements)
        self.images, self.labels = images[mine], labels[mine]
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)),
        )
        self.velocity = [torch.zeros_like(one) for one in self.net.parameters()]
        self.step = 0

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def gradient(self, epoch: int, batch: slice) -> tuple[float, list[Tensor]]:
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(epoch))
        images, labels = self.images[order[batch]], self.labels[order[batch]]
        loss = nn.functional.cross_entropy(self.net(images), labels)
        return loss.item(), list(torch.autograd.grad(loss, list(self.net.parameters())))

    # Momentum by hand: `torch.optim` would do, but its first use imports a compiler, for seconds.
    @endpoint
    @torch.no_grad()
    def apply(self, gradients: list[Tensor]) -> None:
        for one, speed, slope in zip(self.net.parameters(), self.velocity, gradients, strict=True):
            one.sub_(speed.mul_(0.9).add_(slope), alpha=0.1)
        self.step += 1

    @endpoint
    def save(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "velocity": self.velocity, "step": self.step}

    @endpoint
    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.velocity, self.step = state["velocity"], state["step"]

    @endpoint
    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        return (self.net(images).argmax(1) == labels).float().mean().item()


def recover(procs: ProcMesh, trainers: Trainer, died: ProcDied) -> int:
    """Replaces the dead, gives them the state of a survivor, and says which step it is at."""
    started = time.perf_counter()
    dead = {one.rank for _, one in died.failures if isinstance(one, ProcDied)}
    survivor = next(rank for rank in range(len(trainers)) if rank not in dead)
    state = trainers[survivor].save.call_one().get()
    for rank in dead:
        procs.replace(rank)
        trainers[rank].load.call_one(state).get()
    took_ms = (time.perf_counter() - started) * 1000
    print(f"\nrank {died.rank} died of signal {died.signal}, is replaced after {took_ms:.0f} ms")
    return state["step"]


def main(n_procs: int, epochs: int, seed: int) -> None:
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float().div(16).view(-1, 1, 8, 8)
    train, test, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.2, random_state=seed, stratify=labels
    )
    procs = this_host().spawn_procs({"gpus": n_procs})
    trainers = procs.spawn("trainers", Trainer, train, train_labels, seed)
    pids = trainers.pid.call().get()
    steps, share = len(train) // BATCH, BATCH // n_procs
    step, kill_at = 0, epochs // 2 * steps + steps // 2
    while step < epochs * steps:
        epoch, batch = divmod(step, steps)
        try:
            asked = trainers.gradient.call(epoch, slice(batch * share, (batch + 1) * share))
            if step == kill_at:
                os.kill(pids.get(n_procs - 1), signal.SIGKILL)
                kill_at = -1
            losses, gradients = zip(*asked.get().values(), strict=True)
            mean = [torch.stack(parts).mean(0) for parts in zip(*gradients, strict=True)]
            trainers.apply.call(mean).get()
        except ProcDied as died:
            step = recover(procs, trainers, died)
            continue
        step += 1
        bar, loss = "#" * (40 * step // (epochs * steps)), sum(losses) / n_procs
        print(f"\repoch {epoch + 1:2} [{bar:.<40}] loss {loss:.3f} ", end="", flush=True)
    accuracies = trainers.accuracy.call(test, test_labels).get().values()
    print(f"\ntest accuracy {min(accuracies):.1%} on {n_procs} processes")
    assert len(set(accuracies)) == 1, "all processes hold the same network"
    assert min(accuracies) >= 0.95


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--procs", type=int, default=4)
    options.add_argument("--epochs", type=int, default=12)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    main(chosen.procs, chosen.epochs, chosen.seed)

# prints:
#   rank 3 died of signal 9, is replaced after ... ms
#   epoch 12 [########################################] loss ...
#   test accuracy ...% on 4 processes
