"""A tour of Mesh: actors, meshes, hosts, failures, remote memory, tensors and ports."""

import os
from queue import Queue
from threading import Thread

import torch
from torch import Tensor

import mesh_core
from mesh_core import Actor, Channel, MeshFailure, Port, context, endpoint, this_host, this_proc
from mesh_jobs import ProcessJob
from mesh_rdma import RDMABuffer
from mesh_tensor import fetch_shard, remote


class Counter(Actor):
    def __init__(self, value: int) -> None:
        self.value = value

    @endpoint
    def increment(self) -> None:
        self.value += 1

    @endpoint
    def get(self) -> int:
        return self.value


class DataLoader(Actor):
    def __init__(self) -> None:
        self.count = 0

    @endpoint
    def load(self) -> str:
        self.count += 1
        return f"batch {self.count} of {context().actor_instance.rank.rank}"


class Trainer(Actor):
    def __init__(self, loaders: DataLoader) -> None:
        self.loader = loaders.slice(**context().actor_instance.rank)

    @endpoint
    def step(self, scale: Tensor | None = None) -> str:
        batch = self.loader.load.call_one().get()
        return batch if scale is None else f"{batch}, times {scale.item():.0f}"


class Failing(Actor):
    @endpoint
    def fail(self) -> None:
        raise ValueError("not today")


class ParameterServer(Actor):
    def __init__(self) -> None:
        self.weights = torch.full((1000, 1000), 0.5)

    @endpoint
    def handle(self) -> RDMABuffer:
        return RDMABuffer(self.weights)  # sends a handle, not the weights


class Worker(Actor):
    @endpoint
    def sync(self, server: ParameterServer) -> float:
        weights = torch.zeros(1000, 1000)
        server.handle.call_one().get().read_into(weights).get()
        return weights.sum().item()


class Doubler(Actor):
    @endpoint(propagate=torch.empty_like)
    def double(self, x: Tensor) -> Tensor:
        return 2 * x


class Engine(Actor):
    """Answers on its own thread, so requests see an update that arrived after them."""

    def __init__(self) -> None:
        self.weights = 0
        self.requests: Queue[Port[str]] = Queue()

    @endpoint(explicit_response_port=True)
    def infer(self, port: Port[str]) -> None:
        self.requests.put(port)

    @endpoint
    def update(self, weights: int) -> None:
        self.weights = weights
        Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        while not self.requests.empty():
            self.requests.get().send(f"inferred with weights {self.weights}")


# Actors and meshes.
counter = this_proc().spawn("counter", Counter, 0)
print("here:", counter.get.call_one().get())
counters = this_host().spawn_procs({"gpus": 4}).spawn("counters", Counter, 0)
counters.increment.broadcast()
counters.slice(gpus=slice(0, 2)).increment.broadcast()
print("in four processes:", counters.get.call().get().values())

# Hosts. A job of another kind gets them from a scheduler.
job = ProcessJob({"trainers": 2})
hosts = job.state(timeout=60).trainers
procs = hosts.spawn_procs({"gpus": 2})
print("hosts:", hosts.extent, "processes:", procs.extent)

# Handles of actors are arguments like any other.
trainers = procs.spawn("trainers", Trainer, procs.spawn("loaders", DataLoader))
print(trainers.step.call().get().values())

# A caller gets the exception. Without a caller, the owner of the actor is notified.
failing = this_host().spawn_procs().spawn("failing", Failing)
try:
    failing.fail.call_one().get()
except ValueError:
    print("the call failed")
port, failures = Channel[str].open()


def hook(failure: MeshFailure) -> None:
    port.send(f"{failure.mesh_name} failed")


mesh_core.unhandled_fault_hook = hook
failing.fail.broadcast()
print("reported:", failures.recv().get())

# Remote memory.
server = this_host().spawn_procs().spawn("server", ParameterServer)
print(
    "sum of the weights:", this_host().spawn_procs().spawn("w", Worker).sync.call_one(server).get()
)

# Distributed tensors, also as arguments of actors and functions.
with procs.activate() as mesh:
    x = torch.ones(1) * (1 + mesh.rank("hosts") * 2 + mesh.rank("gpus"))
    print("shards:", [fetch_shard(x @ x, hosts=h, gpus=1).get().item() for h in range(2)])
    print(trainers.step.call(x).get().values())
    doubled = procs.spawn("doublers", Doubler).double.rref(x) + 1
    print("doubled:", fetch_shard(doubled, hosts=1, gpus=1).get().item())
    pids = remote(os.getpid).call().get().values()
    print("processes:", len(set(pids)))

# Ports.
engine = this_proc().spawn("engine", Engine)
requests = [engine.infer.call_one() for _ in range(2)]
engine.update.broadcast(7)
print([request.get() for request in requests])
job.kill()

# prints:
#   here: 0
#   in four processes: [2, 2, 1, 1]
#   hosts: {hosts: 2} processes: {hosts: 2, gpus: 2}
#   ['batch 1 of 0', 'batch 1 of 1', 'batch 1 of 2', 'batch 1 of 3']
#   the call failed
#   reported: failing failed
#   sum of the weights: 500000.0
#   shards: [4.0, 16.0]
#   ['batch 2 of 0, times 1', 'batch 2 of 1, times 2', 'batch 2 of 2, times 3', ...]
#   doubled: 9.0
#   processes: 4
#   ['inferred with weights 7', 'inferred with weights 7']
