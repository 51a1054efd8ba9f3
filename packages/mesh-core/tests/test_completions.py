"""Futures of work other than calls."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from mesh_core import MeshError
from mesh_core.spi import CompletionFuture

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mesh_core import Future


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Python does not collect garbage during the test."""
    gc.disable()
    yield
    gc.enable()


class Lease:
    """Work that has failed, and has used something that must be released."""

    def wait(self, timeout: float | None) -> bool:
        return True

    def is_done(self) -> bool:
        return True

    def outcome(self) -> None:
        raise MeshError("the copy has failed")

    def cancel(self) -> bool:
        return False

    def when_done(self, callback: Callable[[], object]) -> None:
        callback()


class Buffer:
    """Starts work; its frames are the callers of the work."""

    def read(self) -> Future[None]:
        future = CompletionFuture(Lease())
        assert future.done()
        return future

    def refused(self) -> Future[None]:
        try:
            Lease().outcome()
        except MeshError as error:
            failure = error
        return CompletionFuture.failed(failure)


def test_a_failed_future_does_not_keep_its_work(no_collection: None) -> None:
    lease = Lease()
    kept = weakref.ref(lease)
    future = CompletionFuture(lease)
    del lease
    with pytest.raises(MeshError, match="the copy has failed"):
        future.get()
    assert kept() is None


@pytest.mark.parametrize("begin", [Buffer.read, Buffer.refused])
def test_the_error_of_a_future_does_not_keep_its_callers(
    no_collection: None, begin: Callable[[Buffer], Future[None]]
) -> None:
    buffer = Buffer()
    kept = weakref.ref(buffer)
    future = begin(buffer)
    del buffer
    with pytest.raises(MeshError, match="the copy has failed"):
        future.get()
    assert kept() is None
