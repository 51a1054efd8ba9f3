"""The store in which ranks find each other behaves as those of PyTorch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed

from mesh_core import Actor, current_rank, endpoint, this_host, this_proc
from mesh_tensor._training.process_group import join_group, leave_group
from mesh_tensor._training.rendezvous_store import MeshStore, StoreServer

LIMIT_S = 60.0


@pytest.fixture
def server() -> Iterator[Any]:
    """The keys and values of a store."""
    started: Any = this_proc().spawn("store", StoreServer)
    yield started
    started.stop().get(LIMIT_S)


def results(store: distributed.Store) -> list[object]:
    """Return what a store answers to each of its requests."""
    store.set("name", "rank 0")
    store.multi_set(["size", "backend"], ["4", "gloo"])
    store.append("log", "a")
    store.append("log", "b")
    return [
        store.has_extended_api(),
        store.get("name"),
        store.multi_get(["backend", "log", "size"]),
        store.add("count", 2),
        store.add("count", 3),
        store.compare_set("name", "rank 1", "rank 2"),
        store.compare_set("name", "rank 0", "rank 2"),
        store.check(["name", "size"]),
        store.check(["name", "missing"]),
        store.delete_key("size"),
        store.delete_key("size"),
        store.num_keys(),
    ]


def test_requests_have_the_results_of_a_store_of_torch(server: Any) -> None:
    assert results(MeshStore(server)) == results(distributed.HashStore())


def test_a_closed_store_ends_waits(server: Any) -> None:
    store = MeshStore(server)
    reading = server.multi_get.call_one(["missing"])
    server.close.call_one().get(LIMIT_S)
    with pytest.raises(RuntimeError, match="was aborted while it was formed"):
        reading.get(LIMIT_S)
    with pytest.raises(RuntimeError, match="was aborted while it was formed"):
        store.wait(["missing"], timedelta(seconds=LIMIT_S))


class CountingStore(MeshStore):
    """Counts the requests of gloo and Mesh."""

    def __init__(self, server: StoreServer) -> None:
        super().__init__(server)
        self.requests: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in ("set", "get", "wait", "add", "check", "append", "multi_set", "multi_get"):
            self.requests[name] += 1
        return super().__getattribute__(name)


class Rank(Actor):
    """Forms process groups."""

    @endpoint
    def join(self, server: StoreServer, size: int) -> Counter[str]:
        """Form a group of `size` ranks, and return the number of requests for this."""
        store = CountingStore(server)
        join_group(store, current_rank().rank, size, "gloo")
        found = torch.ones(1)
        distributed.all_reduce(found)
        assert found.item() == size
        leave_group()
        return store.requests


def test_a_group_needs_the_same_number_of_requests_of_each_rank() -> None:
    counts = []
    with this_host().spawn_procs({"gpus": 6}, name="group") as procs:
        ranks = procs.spawn("ranks", Rank)
        for size in (2, 6):
            server: Any = this_proc().spawn(f"store_{size}", StoreServer)
            members = ranks.slice(gpus=slice(0, size))
            counts += members.join.call(server, size).get(LIMIT_S).values()
            server.stop().get(LIMIT_S)
    assert len({count.total() for count in counts}) == 1, counts
