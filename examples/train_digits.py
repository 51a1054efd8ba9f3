"""Train a classifier of handwritten digits on several processes, one of which is killed.

Every process holds the same network and a share of the images. A training step computes a gradient
in each process, averages the gradients in the program, and applies the average in each process. In
the middle of an epoch one process is killed with SIGKILL. The program replaces it, copies the
weights of a surviving process to it, and continues. Recovery takes only a few lines, because the
death of a process is an exception that the program can catch.
"""

import sys
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from mesh_core import Actor, ProcDied, current_rank, endpoint
from mesh_core.testing import kill_proc
from mesh_jobs import LocalJob

# The job determines where the trainers run. For SLURM or Kubernetes only this line changes.
job = LocalJob(["trainers"])

PROCS, EPOCHS, STEPS = 4, 12, 20  # steps per epoch


class Trainer(Actor):
    def __init__(self, images: Tensor, labels: Tensor) -> None:
        torch.set_num_threads(1)  # the processes share the CPU cores
        torch.manual_seed(0)  # all processes start with the same network
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        share = slice(current_rank().rank, None, PROCS)
        self.images, self.labels = images[share], labels[share]
        self.load(parameters_to_vector(self.net.parameters()).detach(), 0)

    @endpoint
    def load(self, weights: Tensor, step: int) -> None:
        self.weights, self.step = weights, step
        vector_to_parameters(weights, self.net.parameters())  # now they are views of `weights`

    @endpoint
    def save(self) -> tuple[Tensor, int]:
        return self.weights, self.step

    @endpoint
    def gradient(self, epoch: int, batch: int) -> tuple[float, Tensor]:
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(epoch))
        mine = order[batch::STEPS]
        loss = nn.functional.cross_entropy(self.net(self.images[mine]), self.labels[mine])
        slopes = torch.autograd.grad(loss, list(self.net.parameters()))
        return loss.item(), parameters_to_vector(slopes)

    @endpoint
    def apply(self, gradient: Tensor) -> None:
        self.weights -= gradient
        self.step += 1

    @endpoint
    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        return (self.net(images).argmax(1) == labels).float().mean().item()


def recover(died: ProcDied) -> int:
    """Replace dead ranks, copy the weights of a surviving rank to them, and return its step."""
    noticed = time.perf_counter()
    dead = {failure.rank for _, failure in died.failures}
    saved = trainers[min(set(range(PROCS)) - dead)].save.call_one().get()
    for rank in dead:
        trainers.replace(rank)
        trainers[rank].load.call_one(*saved).get()
    took_ms = (time.perf_counter() - noticed) * 1000
    report = f"rank {died.rank} died of signal {died.signal} and was replaced in {took_ms:.0f} ms"
    print(f"\r{report:<72}" if sys.stdout.isatty() else report)
    return saved[1]


def show_progress(step: int, loss: float) -> None:
    """Redraw one line on a terminal; otherwise print a line for each epoch."""
    bar = "#" * (40 * step // (EPOCHS * STEPS))
    line = f"epoch {(step - 1) // STEPS + 1:2} [{bar:.<40}] loss {loss:.3f}"
    if sys.stdout.isatty():
        print(f"\r{line} ", end="\n" if step == EPOCHS * STEPS else "", flush=True)
    elif step % STEPS == 0:
        print(line, flush=True)


pixels, digits = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
images, test_images, labels, test_labels = train_test_split(
    pixels.float() / 16, digits, test_size=0.2, random_state=0
)
began = time.perf_counter()
hosts = job.state().trainers
procs = hosts.spawn_procs({"gpus": PROCS // hosts.size()}).flatten("rank")
trainers = procs.spawn("trainers", Trainer, images, labels)

step, victims = 0, {EPOCHS * STEPS // 2 + STEPS // 2: PROCS - 1}  # rank to kill by step
while step < EPOCHS * STEPS:
    epoch, batch = divmod(step, STEPS)
    try:
        answers = trainers.gradient.call(epoch, batch)
        if step in victims:
            kill_proc(trainers, victims.pop(step))
        losses, gradients = zip(*answers.get().values(), strict=True)
        trainers.apply.call(torch.stack(gradients).mean(0)).get()
        step += 1
        if step == 1:
            print(f"the first step was done after {time.perf_counter() - began:.2f} s")
        show_progress(step, sum(losses) / PROCS)
    except ProcDied as died:
        step = recover(died)

(accuracy,) = set(trainers.accuracy.call(test_images, test_labels).get().values())  # all equal
print(f"test accuracy {accuracy:.1%} on {PROCS} processes")
assert accuracy >= 0.95

# prints:
#   the first step was done after ... s
#   rank 3 died of signal 9 and was replaced in ... ms
#   epoch 12 [########################################] loss ...
#   test accuracy ...% on 4 processes
