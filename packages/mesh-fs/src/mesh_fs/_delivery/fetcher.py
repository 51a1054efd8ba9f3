"""Fetches chunks to this host from the nearest process that has them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from mesh_core import MeshError
from mesh_fs._delivery.chunk_ids import joined, split
from mesh_fs._delivery.window import SLOT_BYTES, Slots
from mesh_fs._errors import StoreError
from mesh_rdma import RDMATransportError, allocate

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any, TypeAlias

    from mesh_fs import _core
    from mesh_fs._delivery.relay import Relay
    from mesh_fs._delivery.source import Source
    from mesh_rdma import RDMABuffer

    Provider: TypeAlias = Relay | Source

__all__ = ["BATCH_MAX", "ChunkFetcher", "in_background"]

#: The maximum number of chunks in one request. They usually fill a slot.
BATCH_MAX = 128
#: The maximum number of attempts for chunks whose content does not match their names.
_TRIES_MAX = 3

_logger = logging.getLogger("mesh_fs")


class _Connection:
    """A connection to a provider, with its window."""

    def __init__(self, provider: Provider, window: RDMABuffer) -> None:
        self.provider = provider
        self.slots = Slots()
        self._window = window
        self._is_shared = True
        try:
            # The memory of a provider on the same machine is accessed directly, without a copy.
            self._memory = window.view()
        except RDMATransportError:
            self._is_shared = False
            self._memory = allocate(len(window))

    async def bytes_of(self, slot: int, count: int) -> memoryview:
        """Return the data in a slot, which is valid until the slot is released."""
        start = slot * SLOT_BYTES
        memory = self._memory[start : start + count]
        if count and not self._is_shared:
            await self._window.read_into(memory, offset=start, length=count)
        return memory


class ChunkFetcher:
    """Fetches chunks that are not in the store of this host, each once for all requesters.

    Args:
        store: The store for the chunks.
        providers: The providers, nearest first. If one is lost, the next one is used.
        reader: The name by which providers identify this process.
        on_arrival: Called with the names of chunks when they arrive, in any thread.
    """

    def __init__(
        self,
        store: _core.Store,
        providers: Sequence[Provider],
        reader: str,
        on_arrival: Callable[[bytes], None],
    ) -> None:
        self._store = store
        self._providers = list(providers)
        self._reader = reader
        self._on_arrival = on_arrival
        self._connection: asyncio.Future[_Connection] | None = None
        self._in_flight: dict[bytes, asyncio.Task[None]] = {}
        self._refused: dict[bytes, str] = {}
        self.fetched_bytes = 0

    def prepare(self) -> None:
        """Connect to the nearest provider in advance, so that the first fetch need not wait."""
        if self._connection is None and self._providers:
            self._connection = asyncio.ensure_future(self._connect(self._providers[0]))
            # Retrieve the exception here; the next fetch raises it.
            self._connection.add_done_callback(lambda made: made.cancelled() or made.exception())

    async def ensure(self, names: bytes, *, is_urgent: bool = False) -> dict[bytes, str]:
        """Wait until chunks are in the store; return unavailable chunks, each with the reason."""
        missing = split(self._store.missing(names))
        new = [name for name in missing if name not in self._in_flight]
        waits = {self._in_flight[name] for name in missing if name in self._in_flight}
        for start in range(0, len(new), BATCH_MAX):
            batch = new[start : start + BATCH_MAX]
            for name in batch:
                self._refused.pop(name, None)
            task = asyncio.create_task(self._fetch(batch, is_urgent=is_urgent))
            waits.add(task)
            self._in_flight |= dict.fromkeys(batch, task)
        if waits:
            await asyncio.wait(waits)
        return {name: why for name in missing if (why := self._refused.get(name)) is not None}

    async def _fetch(self, names: list[bytes], *, is_urgent: bool) -> None:
        left, tries = names, 0
        try:
            while left and tries < _TRIES_MAX:
                rest = await self._fetch_some(left, is_urgent=is_urgent)
                # None: the provider has not replied; the next attempt uses another one.
                tries += rest is not None and len(rest) == len(left)
                left = left if rest is None else rest
            self._refuse(left, "its bytes repeatedly arrived damaged")
        except StoreError as error:
            self._refuse(left, str(error))
        except _ProvidersExhausted:
            self._refuse(left, "all of its providers are lost")
        except Exception as error:
            self._refuse(left, f"{type(error).__name__}: {error}")
            raise
        finally:
            for name in names:
                self._in_flight.pop(name, None)

    async def _fetch_some(self, names: list[bytes], *, is_urgent: bool) -> list[bytes] | None:
        """Fetch as many chunks as fit into a slot; return the remaining ones."""
        connection = await self._get_connection()
        slot = await connection.slots.acquire(is_urgent=is_urgent)
        try:
            lengths = await connection.provider.fetch.call_one(self._reader, slot, joined(names))
            count = sum(length for length in lengths if length > 0)
            return await self._receive(names, lengths, await connection.bytes_of(slot, count))
        except StoreError:
            raise
        except MeshError as error:
            self._lose(connection, error)
            return None
        finally:
            await connection.slots.release(slot)

    async def _receive(
        self, names: list[bytes], lengths: list[int], memory: memoryview
    ) -> list[bytes]:
        results = list(zip(names, lengths, strict=False))
        self._refuse(
            [name for name, length in results if length < 0], "its file changed on the client"
        )
        received = [(name, length) for name, length in results if length >= 0]
        # A read that this completes may be followed by a query of the status.
        self.fetched_bytes += sum(length for _, length in received)
        bad = await asyncio.to_thread(self._add_to_store, received, memory)
        return [*bad, *names[len(lengths) :]]

    def _add_to_store(self, received: list[tuple[bytes, int]], memory: memoryview) -> set[bytes]:
        """Add chunks to the store, and complete waiting reads; return damaged chunks.

        It runs in a separate thread, because completing reads takes time in proportion to the data.
        """
        ids, sizes = joined(name for name, _ in received), [length for _, length in received]
        bad = {received[place][0] for place in self._store.take_in(ids, sizes, memory)}
        self._on_arrival(joined(name for name, _ in received if name not in bad) if bad else ids)
        return bad

    async def _get_connection(self) -> _Connection:
        """Return the connection to the nearest provider, shared by all requests."""
        while True:
            if self._connection is None:
                if not self._providers:
                    raise _ProvidersExhausted
                self._connection = asyncio.ensure_future(self._connect(self._providers[0]))
            connecting = self._connection
            try:
                return await asyncio.shield(connecting)
            except MeshError as error:
                if self._connection is connecting:
                    self._drop_provider(error)

    async def _connect(self, provider: Provider) -> _Connection:
        return _Connection(provider, await provider.join.call_one(self._reader))

    def _lose(self, connection: _Connection, error: MeshError) -> None:
        is_current = self._connection is not None and self._connection.done()
        if is_current and self._connection is not None and self._connection.result() is connection:
            self._drop_provider(error)

    def _drop_provider(self, error: MeshError) -> None:
        self._connection = None
        lost = self._providers.pop(0)
        _logger.warning("%s no longer provides chunks: %s", lost, error)

    def _refuse(self, names: list[bytes], why: str) -> None:
        self._refused |= dict.fromkeys(names, why)


class _ProvidersExhausted(Exception):
    """All providers are lost."""


def in_background(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    """Start a task, and keep a reference to it until it ends."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
