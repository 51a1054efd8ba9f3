"""Transfers end in time, whatever their channel does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mesh_rdma import RDMABuffer, RDMATimeout
from mesh_rdma._plugins.target import _Driver
from mesh_rdma._plugins.transport import Channel, Completion, Request

LIMIT_S = 60.0
DEADLINE_S = 0.01


class SlowToPost(Channel):
    """A channel that is slower to accept a request than the request may take."""

    def __init__(self) -> None:
        self.polled = threading.Event()
        self.posted: list[Request] = []
        self.aborted: list[Request] = []

    def post(self, request: Request) -> None:
        # The driver polls, and looks for expired requests, at least twice after the deadline.
        for _ in range(3):
            self.polled.clear()
            assert self.polled.wait(LIMIT_S)
        threading.Event().wait(DEADLINE_S)
        self.posted.append(request)

    def poll(self, timeout: float) -> Sequence[Completion]:
        self.polled.set()
        threading.Event().wait(timeout)
        return []

    def abort(self, request: Request) -> None:
        self.aborted.append(request)

    def close(self) -> None:
        """Do nothing."""


class Broken(Channel):
    """A channel that fails in all that it does after a request was posted."""

    def __init__(self) -> None:
        self.posted = threading.Event()

    def post(self, request: Request) -> None:
        self.posted.set()

    def poll(self, timeout: float) -> Sequence[Completion]:
        assert self.posted.wait(LIMIT_S)
        raise OSError("the device is gone")

    def abort(self, request: Request) -> None:
        raise OSError("it cannot be aborted")

    def close(self) -> None:
        raise OSError("it cannot be closed")


class OneChannel:
    """Connects a channel that exists already."""

    def __init__(self, channel: Channel) -> None:
        self.channel: Any = channel

    def connect(self, exchange: Callable[[bytes], bytes]) -> Channel:
        return self.channel


def test_a_transfer_that_expires_during_its_post_is_aborted_afterwards() -> None:
    transport: Any = OneChannel(SlowToPost())
    request: Any = object()
    buffer = RDMABuffer(bytearray(8))
    driver = _Driver("slow", transport, buffer._handle)
    transfer: Any = driver.post(request, None, DEADLINE_S)
    assert transfer.wait(LIMIT_S)
    with pytest.raises(RDMATimeout):
        transfer.outcome()
    assert transport.channel.posted == [request]
    assert transport.channel.aborted == [request], "before, the channel did not know it"


def test_a_transfer_fails_even_if_its_channel_cannot_be_closed() -> None:
    transport: Any = OneChannel(Broken())
    request: Any = object()
    buffer = RDMABuffer(bytearray(8))
    transfer: Any = _Driver("broken", transport, buffer._handle).post(request, None, None)
    assert transfer.wait(LIMIT_S)
    with pytest.raises(OSError, match="the device is gone"):
        transfer.outcome()
