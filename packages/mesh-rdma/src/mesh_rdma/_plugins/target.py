"""Transfers through a plug-in transport, and the thread that polls each channel."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import time
import traceback
from copy import copy
from typing import TYPE_CHECKING, Any

from mesh_rdma import _core
from mesh_rdma._completions.completion import ThreadedCompletion
from mesh_rdma._errors import (
    RDMACancelled,
    RDMAError,
    RDMAReleased,
    RDMATimeout,
    RDMATransportError,
)
from mesh_rdma._plugins.registrations import CONNECT, RELEASED, describe_request, request_handler
from mesh_rdma._plugins.transport import Kind, Region, Request

if TYPE_CHECKING:
    from mesh_rdma._plugins.registry import Loaded
    from mesh_rdma._plugins.transport import Channel, Transport

__all__ = ["PluginTarget", "plugin_target"]

_EXCHANGE_S = 30.0
_POLL_S = 0.02
_LATE = "the transfer was not done in time; no more bytes of it are written"
_WORD = 8

_lock = threading.Lock()
_drivers: dict[tuple[str, bytes], _Driver] = {}
_of_parents: list[_Driver] = []


def _reset_after_fork() -> None:
    """Drop the drivers in a forked child: their threads and channels belong to the parent."""
    global _lock
    _lock = threading.Lock()
    _of_parents.extend(_drivers.values())
    _drivers.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


class _Transfer(ThreadedCompletion):
    """A posted request, as a `mesh_core.spi.Completion`."""

    def __init__(
        self, driver: _Driver, request: Request, memory_owner: Any, until: float | None
    ) -> None:
        super().__init__()
        self.request = request
        self.until = until
        #: Whether the channel has the request. Until then, it cannot abort the request.
        self.is_posted = False
        self.ending: RDMAError | None = None
        self._driver = driver
        self._memory_owner = memory_owner

    def cancel(self) -> bool:
        error = RDMACancelled("the transfer was cancelled; no more bytes of it are written")
        is_first = self._driver.end(self, error)
        self._done.wait()
        return is_first

    def settle(self, error: BaseException | None) -> None:
        """Settle with the result of the transport, or with the error that ended it early."""
        self._memory_owner = None
        self._settle(error)


class _Driver:
    """A channel, and the thread that polls it for finished requests."""

    def __init__(self, name: str, transport: Transport, handle: _core.Handle) -> None:
        # The borrowed handle keeps no buffer alive, because the channel serves all buffers.
        self._handle = borrowed = _core.Handle.decode_borrowed(handle.encode_borrowed())
        self._name = name

        def exchange(request: bytes) -> bytes:
            return _send_request(borrowed, name, CONNECT + request)

        self._channel: Channel = transport.connect(exchange)
        self._running: dict[Request, _Transfer] = {}
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name=f"mesh-rdma-{name}", daemon=True).start()

    def refusal_of(self, descriptor: bytes) -> str | None:
        """Return the reason why a registration cannot be reached, or None."""
        return self._channel.refusal_of(descriptor)

    @property
    def is_over(self) -> bool:
        """Whether no more requests can be posted."""
        return self._error is not None

    def post(self, request: Request, memory_owner: Any, timeout: float | None) -> _Transfer:
        """Start a transfer.

        Raises:
            RDMAError: The transfer cannot start, or the channel has failed.
            ValueError: The timeout is not a finite non-negative number of seconds.
        """
        if timeout is not None and not 0 <= timeout < math.inf:
            raise ValueError(f"timeout {timeout} is not a finite number of seconds from 0 up")
        until = None if timeout is None else time.monotonic() + timeout
        transfer = _Transfer(self, request, memory_owner, until)
        if timeout == 0:
            transfer.settle(RDMATimeout(_LATE))
            return transfer
        with self._changed:
            if self._error is not None:
                # A copy is raised, because a raised exception keeps all frames of its traceback
                # alive.
                raise copy(self._error)
            self._running[request] = transfer
            self._changed.notify()
        try:
            self._channel.post(request)
        except BaseException:
            with self._changed:
                # If the channel has failed in the meantime, its thread has ended this transfer.
                self._running.pop(request, None)
            raise
        with self._changed:
            transfer.is_posted = True
        return transfer

    def end(self, transfer: _Transfer, error: RDMAError) -> bool:
        """End a transfer with an error, unless it has already ended."""
        with self._changed:
            if transfer.ending is not None or transfer.request not in self._running:
                return False
            transfer.ending = error
        self._channel.abort(transfer.request)
        with self._changed:
            self._running.pop(transfer.request, None)
        transfer.settle(error)
        return True

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    while not self._running:
                        self._changed.wait()
                self._handle.check()
                self._poll()
                self._end_expired()
        except BaseException as error:
            with self._changed:
                self._error = copy(error)
                left = list(self._running.values())
                self._running.clear()
            try:
                self._channel.close()
            except Exception:
                traceback.print_exc()  # Callers still wait for their transfers.
            for transfer in left:
                transfer.settle(transfer.ending or copy(error))

    def _poll(self) -> None:
        with self._changed:
            untils = [one.until for one in self._running.values() if one.until and one.is_posted]
        pause = min([_POLL_S, *(until - time.monotonic() for until in untils)])
        for request, error in self._channel.poll(max(pause, 0.0)):
            with self._changed:
                transfer = self._running.get(request)
                if transfer is None or transfer.ending is not None:
                    continue
                again = isinstance(error, RDMACancelled)
                if not again:
                    del self._running[request]
            if again:
                # The request was aborted only because another one was.
                self._channel.post(request)
            else:
                transfer.settle(error)

    def _end_expired(self) -> None:
        now = time.monotonic()
        with self._changed:
            posted = [one for one in self._running.values() if one.is_posted]
            late = [one for one in posted if one.until and one.until <= now]
        for transfer in late:
            self.end(transfer, RDMATimeout(_LATE))


class PluginTarget:
    """A buffer and the channel to it: the counterpart of `_core.Target` for plug-ins."""

    def __init__(
        self,
        loaded: Loaded,
        driver: _Driver,
        descriptor: bytes,
        handle: _core.Handle,
        fallback: Any,
    ) -> None:
        assert loaded.transport is not None
        self.transport = loaded.name
        self.reaches_devices = loaded.transport.reaches_devices
        self._has_atomics = loaded.transport.has_atomics
        self._handle = handle
        self._driver = driver
        self._descriptor = descriptor
        # The fallback performs the operations that the transport does not support.
        self._fallback = fallback

    @property
    def is_over(self) -> bool:
        """Whether this target is no longer usable; a new one may be."""
        return self._driver.is_over or bool(self._fallback.is_over)

    def read(self, local: _core.Local, offset: int, timeout: float | None) -> _Transfer:
        """Copy from the buffer."""
        return self._post(Kind.READ, local, offset, timeout)

    def write(self, local: _core.Local, offset: int, timeout: float | None) -> _Transfer:
        """Copy to the buffer."""
        return self._post(Kind.WRITE, local, offset, timeout)

    def fetch_add(self, offset: int, add: int, timeout: float | None) -> int:
        """Atomically add to a word."""
        if not self._has_atomics:
            return self._fallback.fetch_add(offset, add, timeout)  # type: ignore[no-any-return]
        return self._change(Kind.FETCH_ADD, offset, add, 0, timeout)

    def compare_and_swap(self, offset: int, compare: int, swap: int, timeout: float | None) -> int:
        """Atomically compare and swap a word."""
        if not self._has_atomics:
            done: int = self._fallback.compare_and_swap(offset, compare, swap, timeout)
            return done
        return self._change(Kind.COMPARE_AND_SWAP, offset, swap, compare, timeout)

    def release(self, timeout: float | None) -> None:
        """Make the owner release the registration."""
        self._fallback.release(timeout)

    def view(self, offset: int, nbytes: int) -> _core.View:
        """Map a range for a view; only the fallback supports that."""
        view: _core.View = self._fallback.view(offset, nbytes)
        return view

    def _post(
        self, kind: Kind, local: _core.Local, offset: int, timeout: float | None
    ) -> _Transfer:
        if local.device is not None and not self.reaches_devices:
            raise RDMATransportError(f"{self.transport} does not support device memory")
        region = Region(local.address, local.nbytes, local.is_writable, local.device)
        copy_lease = self._handle.acquire_copy_lease if self._handle.is_same_machine else None
        request = Request(kind, region, self._descriptor, offset, copy_lease=copy_lease)
        # The fallback holds the handle, because the buffer is in use during a transfer.
        return self._driver.post(request, (local, self._fallback), timeout)

    def _change(
        self, kind: Kind, offset: int, operand: int, compare: int, timeout: float | None
    ) -> int:
        found = ctypes.create_string_buffer(_WORD)
        region = Region(ctypes.addressof(found), _WORD, True)
        request = Request(kind, region, self._descriptor, offset, operand, compare)
        transfer = self._driver.post(request, found, timeout)
        transfer.wait(None)
        transfer.outcome()
        return int.from_bytes(found.raw, "little")


def plugin_target(loaded: Loaded, handle: _core.Handle, fallback: Any) -> PluginTarget:
    """Reach a buffer through a transport that can be used here.

    Raises:
        RDMAError: The owner does not have the transport, or cannot be reached through it.
    """
    assert loaded.transport is not None
    token, slot, key = handle.identity
    descriptor = _send_request(handle, loaded.name, describe_request(slot, key))
    if descriptor == RELEASED:
        raise RDMAReleased("the buffer was released: request another one from the owner")
    place = (loaded.name, bytes(token))
    with _lock:
        driver = _drivers.get(place)
        if driver is None or driver.is_over:
            driver = _drivers[place] = _Driver(loaded.name, loaded.transport, handle)
    refusal = driver.refusal_of(descriptor)
    if refusal is not None:
        raise RDMATransportError(refusal)
    return PluginTarget(loaded, driver, descriptor, handle, fallback)


def _send_request(handle: _core.Handle, name: str, request: bytes) -> bytes:
    """Send a request to a transport of the owner, which may be this process."""
    if not handle.is_ours:
        return handle.exchange(name, request, _EXCHANGE_S)
    handle_request = request_handler(name)
    assert handle_request is not None, "a transport that is driven here is installed here"
    return handle_request(request)
