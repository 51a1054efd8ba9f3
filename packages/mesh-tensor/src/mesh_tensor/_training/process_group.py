"""The process group of a rank, which can be aborted while a collective waits.

NCCL can abort its operations. Gloo cannot: an operation that waits for a rank that hangs or whose
host is unreachable would wait for minutes. Its connections are shut down for reading instead: gloo
reads their end, which ends the operation at once. They are found by the ports on which gloo
listens, because a process also has other connections.

Writing must remain possible until the operation has ended. If gloo reads that a peer is ready and
cannot write to it, the operation that sends to this peer never ends. Gloo closes a connection whose
end it has read; a duplicate keeps it open, so that no peer gets an error when it writes.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from torch import distributed
from torch.distributed import distributed_c10d

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch._C._distributed_c10d import Store

Address: TypeAlias = tuple[str, int]

__all__ = ["abort_group", "join_group", "leave_group"]

# Hangs are detected by the progress of the steps. This limit applies only if that detection fails.
_TIMEOUT = timedelta(minutes=30)
# The prefix of the keys in the store under which ranks publish on which addresses they listen.
_LISTENERS = "mesh/listeners/"
# The addresses on which the ranks of the current group accept connections.
_listeners: set[Address] = set()
# Duplicates of the connections of an aborted group.
_aborted: list[socket.socket] = []


def join_group(store: Store, rank: int, size: int, backend: str) -> None:
    """Leave the current process group of this process, and form a new one with other ranks.

    Args:
        store: A store of this group only.
        rank: The rank of this process.
        size: The number of ranks.
        backend: The name of the backend, such as `gloo` or `cpu:gloo,cuda:nccl`.

    Raises:
        RuntimeError: The ranks could not connect, or the store was closed.
    """
    leave_group()
    # Gloo then reads the addresses of all ranks with one request to the store instead of two each.
    os.environ.setdefault("GLOO_ENABLE_STORE_V2_API", "1")
    before = set(_listening())
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT
    )
    own = [address for address in _listening() if address not in before]
    # A collective would be simpler, but it could not be aborted before all addresses are known.
    store.set(f"{_LISTENERS}{rank}", json.dumps(own))
    for published in store.multi_get([f"{_LISTENERS}{peer}" for peer in range(size)]):
        _listeners.update((host, port) for host, port in json.loads(published))


def leave_group() -> None:
    """Leave the current process group, if any."""
    _listeners.clear()
    while _aborted:
        _aborted.pop().close()
    if distributed.is_initialized():
        distributed.destroy_process_group()
    # The keys of a group in its store contain this number. Torch resets it only if the previous
    # group was formed; a rank that was replaced would then wait for other keys than the others.
    distributed_c10d._world.group_count = 0


def abort_group() -> None:
    """End all collectives of the current process group, in any thread, with an error."""
    if distributed.is_initialized():
        with suppress(RuntimeError):
            distributed.group.WORLD.abort()  # type: ignore[union-attr]
    for connection in _connections():
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RD)
            _aborted.append(connection.dup())


def _connections() -> Iterator[socket.socket]:
    """Yield the connections of the group, as sockets that share them."""
    for one in _tcp_sockets():
        with suppress(OSError):
            # A listener has no peer, which is an error.
            if one.getpeername()[:2] in _listeners or one.getsockname()[:2] in _listeners:
                yield one


def _listening() -> Iterator[Address]:
    """Yield the addresses on which this process listens."""
    for one in _tcp_sockets():
        with suppress(OSError):
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                yield one.getsockname()[:2]


def _tcp_sockets() -> Iterator[socket.socket]:
    """Yield duplicates of the TCP sockets of this process; each is closed after its turn."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            number = int(name)
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as one:
                if one.family in (socket.AF_INET, socket.AF_INET6):
                    yield one
