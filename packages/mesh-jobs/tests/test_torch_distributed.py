"""Actors use `torch.distributed` after `setup_torch_distributed`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from mesh_core import Actor, endpoint, this_host
from mesh_jobs import setup_torch_distributed

if TYPE_CHECKING:
    from pathlib import Path

    from mesh_core import HostMesh

LIMIT_S = 60.0
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


class Trainer(Actor):
    @endpoint
    def variables(self) -> list[int]:
        return [int(os.environ[name]) for name in NAMES]

    @endpoint
    def master(self) -> tuple[str, str]:
        return os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]

    @endpoint
    def torch_threads(self) -> int:
        import torch

        return torch.get_num_threads()

    @endpoint
    def reduce(self) -> float:
        import torch
        from torch import distributed

        distributed.init_process_group("gloo")
        total = torch.ones(1) * (distributed.get_rank() + 1)
        distributed.all_reduce(total)
        distributed.destroy_process_group()
        return float(total)


def test_ranks_of_two_hosts_have_the_variables_of_torchrun(hosts: HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 2})
    setup_torch_distributed(procs)
    trainers: Any = procs.spawn("trainers", Trainer)
    assert trainers.variables.call().get(LIMIT_S).values() == [
        [0, 4, 0, 2, 0, 2],
        [1, 4, 1, 2, 0, 2],
        [2, 4, 0, 2, 1, 2],
        [3, 4, 1, 2, 1, 2],
    ]
    masters = trainers.master.call().get(LIMIT_S).values()
    assert len(set(masters)) == 1
    procs.stop().get(LIMIT_S)


def test_a_slice_of_processes_is_a_separate_world(hosts: HostMesh) -> None:
    procs = hosts.spawn_procs({"gpus": 2})
    part = procs.slice(gpus=1)
    setup_torch_distributed(part)
    trainers: Any = part.spawn("trainers", Trainer)
    found = trainers.variables.call().get(LIMIT_S).values()
    assert found == [[0, 2, 0, 1, 0, 2], [1, 2, 0, 1, 1, 2]]
    procs.stop().get(LIMIT_S)


def test_actors_reduce_tensors_with_torch(hosts: HostMesh) -> None:
    pytest.importorskip("torch")
    procs = hosts.spawn_procs({"gpus": 2})
    setup_torch_distributed(procs)
    trainers: Any = procs.spawn("trainers", Trainer)
    assert set(trainers.reduce.call().get(LIMIT_S).values()) == {10.0}
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    assert set(trainers.torch_threads.call().get(LIMIT_S).values()) == {share}
    procs.stop().get(LIMIT_S)


RANDOM = """
import torch
from mesh_core import Actor, endpoint, this_host

class Player(Actor):
    @endpoint
    def draw(self):
        return float(torch.rand(1))

players = this_host().spawn_procs({"n": 3}).spawn("players", Player)
print(len(set(players.draw.call().get(60).values())))
"""


def test_processes_draw_different_random_numbers(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    # A module that the script imports is imported once, in the template of the processes.
    script = tmp_path / "script.py"
    script.write_text(RANDOM)
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    assert ended.stdout == "3\n"


def test_a_given_address_is_used() -> None:
    procs = this_host().spawn_procs()
    setup_torch_distributed(procs, master_addr="trainer-0", master_port=29500)
    trainer: Any = procs.spawn("trainer", Trainer)
    assert trainer.master.call_one().get(LIMIT_S) == ("trainer-0", "29500")
    with pytest.raises(ValueError, match="pass both master_addr and master_port, or neither"):
        setup_torch_distributed(procs, master_addr="trainer-0")
    procs.stop().get(LIMIT_S)
