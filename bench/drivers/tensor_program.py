"""The benchmark program with distributed tensors, written once for Mesh and its peer.

The runner limits torch to one thread in every process, including the program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.affinity import pin_process
from bench.drivers.driver import Driver


def bump(x: torch.Tensor) -> torch.Tensor:
    """The function that is called on the processes."""
    return x + 1


def await_file(path: str) -> None:
    """Block a process until a file exists."""
    while not Path(path).exists():
        time.sleep(0.001)


@dataclass(frozen=True)
class TensorApi:
    """The names through which a framework is driven; unsupported operations are None."""

    this_host: Callable[[], Any]
    #: Fetches the value of the first process and waits for it.
    fetch: Callable[[Any], Any]
    #: `bump` as a function that is called on all processes.
    bump: Any
    #: An actor with an endpoint `touch` that receives a tensor.
    toucher: type
    #: Sends a tensor of the program to all processes, or creates one of the same shape and of this
    #: standard deviation there.
    place: Callable[[torch.Tensor, float], Any]
    #: Records a function at its first call, and replays it afterwards.
    trace: Callable[[Any], Any] | None
    #: Averages over the processes, in place.
    average_: Callable[[Any], Any] | None
    average: Callable[[Any], Any] | None
    #: Makes a function run on the processes and return its value.
    inspect_remote: Callable[[Any], Any] | None
    #: A program with two processes that prints an `x` after it has fetched a value.
    first_fetch: str


class TensorDriver(Driver):
    """Drives a framework through `activate`, torch operations and fetches."""

    def __init__(self, name: str, api: TensorApi) -> None:
        self.name = name
        self.api = api
        torch.set_num_threads(1)

    @property
    def is_peer(self) -> bool:
        """Whether this is the peer, for which many of the operations would take minutes."""
        return self.name.startswith("monarch")

    def start(self, workers: int, kind: str = "tensor") -> None:
        self._procs = self.api.this_host().spawn_procs({"gpus": workers})
        with self.activate():
            self.api.fetch(torch.ones(4, 4) + 1)

    def stop(self) -> None:
        """Do nothing: the processes exit with the program."""

    def activate(self) -> AbstractContextManager[Any]:
        """Create tensors on the processes within the context."""
        active: AbstractContextManager[Any] = self._procs.activate()
        return active

    def place(self, tensor: torch.Tensor) -> Any:
        """Create a tensor like this one on all processes."""
        deviation = float(tensor.detach().square().mean().sqrt())
        with self.activate():
            return self.api.place(tensor, deviation)

    def call_bump(self, x: Any) -> Any:
        """Call a function on all processes, and wait for its values."""
        return self.api.bump.call(x).get()

    def start_actors(self) -> None:
        """Spawn an actor on each process, for `touch`."""
        self._touchers = self._procs.spawn("touchers", self.api.toucher)

    def touch(self, x: Any) -> Any:
        """Call an endpoint of all actors with a tensor, and wait for the replies."""
        return self._touchers.touch.call(x).get()

    def pin(self, cores: Sequence[int]) -> None:
        """Restrict the processes to some cores."""
        assert self.api.inspect_remote is not None
        with self.activate():
            self.api.inspect_remote(pin_process).call(list(cores)).get()

    def block(self, path: str) -> None:
        """Block the processes until a file exists."""
        if self.api.inspect_remote is not None:
            self.api.inspect_remote(await_file).broadcast(path)
