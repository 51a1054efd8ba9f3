"""Adds tensors that exist on two processes."""

import torch

from mesh_core import this_host
from mesh_tensor import fetch_shard

procs = this_host().spawn_procs({"n": 2})
with procs.activate():
    total = torch.ones(2, 2) + torch.ones(2, 2)
    print(fetch_shard(total).get().sum().item())
procs.stop().get()

# prints:
#   8.0
