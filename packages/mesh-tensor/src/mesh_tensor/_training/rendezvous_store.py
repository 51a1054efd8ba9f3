"""A store of `torch.distributed` whose requests are messages to an actor of the program.

Ranks find each other through it, so the store needs no separate address or port. It belongs to one
process group: when it is closed, all ranks that still wait for others get an error.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from torch._C._distributed_c10d import Store

from mesh_core import Actor, concurrent_endpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MeshStore", "StoreServer"]

_TIMEOUT = timedelta(minutes=5)


class StoreServer(Actor):
    """The keys and values of a store."""

    async def __init__(self) -> None:  # type: ignore[misc]
        self._values: dict[str, bytes] = {}
        self._changed = asyncio.Condition()
        self._is_closed = False

    @concurrent_endpoint
    async def multi_set(self, values: dict[str, bytes]) -> None:
        """Set values."""
        async with self._changed:
            self._values.update(values)
            self._changed.notify_all()

    @concurrent_endpoint
    async def append(self, key: str, value: bytes) -> None:
        """Append to a value, which is empty at first."""
        async with self._changed:
            self._values[key] = self._values.get(key, b"") + value
            self._changed.notify_all()

    @concurrent_endpoint
    async def multi_get(self, keys: list[str]) -> list[bytes]:
        """Wait until all keys exist, and return their values."""
        async with self._changed:
            await self._wait_for(keys)
            return [self._values[key] for key in keys]

    @concurrent_endpoint
    async def wait(self, keys: list[str]) -> None:
        """Wait until all keys exist."""
        async with self._changed:
            await self._wait_for(keys)

    @concurrent_endpoint
    async def add(self, key: str, amount: int) -> int:
        """Add to a number, which is 0 at first; return the sum."""
        async with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(total).encode()
            self._changed.notify_all()
            return total

    @concurrent_endpoint
    async def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set a value if the current one is as expected; return the value afterwards."""
        async with self._changed:
            current = self._values.get(key, b"")
            if current == expected:
                self._values[key] = current = desired
                self._changed.notify_all()
            return current or expected

    @concurrent_endpoint
    async def check(self, keys: list[str]) -> bool:
        """Return whether all keys exist."""
        return all(key in self._values for key in keys)

    @concurrent_endpoint
    async def delete(self, key: str) -> bool:
        """Delete a key; return whether it existed."""
        return self._values.pop(key, None) is not None

    @concurrent_endpoint
    async def count(self) -> int:
        """Return the number of keys."""
        return len(self._values)

    @concurrent_endpoint
    async def close(self) -> None:
        """Let all waits raise an error, including those that begin later."""
        async with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    async def _wait_for(self, keys: list[str]) -> None:
        """Wait until all keys exist; the caller holds the condition.

        Raises:
            RuntimeError: The store was closed.
        """
        while True:
            # A rank waits for the keys of all ranks, so each change must not check all of them.
            for key in keys:
                await self._changed.wait_for(partial(self._is_closed_or_has, key))
            if self._is_closed:
                raise RuntimeError("the process group was aborted while it was formed")
            if all(key in self._values for key in keys):
                return

    def _is_closed_or_has(self, key: str) -> bool:
        return self._is_closed or key in self._values


class MeshStore(Store):
    """The store as `torch.distributed` sees it; methods have the names and values of `Store`."""

    def __init__(self, server: StoreServer) -> None:
        super().__init__()
        self._server = server
        self._timeout = _TIMEOUT

    def set(self, key: str, value: str | bytes) -> None:
        self.multi_set([key], [value])

    def multi_set(self, keys: list[str], values: Sequence[str | bytes]) -> None:
        pairs = zip(keys, values, strict=True)
        self._server.multi_set.call_one({key: _bytes(value) for key, value in pairs}).get()

    def append(self, key: str, value: str | bytes) -> None:
        self._server.append.call_one(key, _bytes(value)).get()

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._server.multi_get.call_one(list(keys)).get(self._timeout.total_seconds())

    def add(self, key: str, amount: int) -> int:
        return self._server.add.call_one(key, amount).get()

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        values = (_bytes(expected), _bytes(desired))
        return self._server.compare_set.call_one(key, *values).get()

    def check(self, keys: list[str]) -> bool:
        return self._server.check.call_one(list(keys)).get()

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        # A closed store ends the wait, so ranks that start late have more time than gloo permits.
        limit = self._timeout if timeout is None else max(timeout, self._timeout)
        self._server.wait.call_one(list(keys)).get(limit.total_seconds())

    def delete_key(self, key: str) -> bool:
        return self._server.delete.call_one(key).get()

    def num_keys(self) -> int:
        return self._server.count.call_one().get()

    def has_extended_api(self) -> bool:
        # There are `append`, `multi_get` and `multi_set`.
        return True

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    @property
    def timeout(self) -> timedelta:
        return self._timeout


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
