"""Checkpoints in the memory of a process: its own, and copies of those of other ranks."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from mesh_core import wait
from mesh_rdma import RDMATimeout, VersionedBuffer
from mesh_tensor._training.errors import CheckpointCorrupt
from mesh_tensor._training.state_codec import encode_state

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mesh_core import Future
    from mesh_rdma import RDMABuffer, Version

__all__ = ["MemoryCheckpoints"]

# All ranks have a checkpoint of one of the last two steps, because no rank ends a step before all
# ranks have begun it.
_KEPT = 2
# Two that are kept, and one that is written.
_VERSIONS = _KEPT + 1
# How long to wait for readers of old versions before other memory is used.
_WRITE_TIMEOUT_S = 0.5


class MemoryCheckpoints:
    """The checkpoints of one rank for the last two steps, which other processes can read."""

    def __init__(self) -> None:
        self._memory: VersionedBuffer | None = None
        self._kept: dict[int, tuple[Version, memoryview]] = {}
        self._copying: Future[None] | None = None
        # The trainer drops checkpoints while the holder may still store one.
        self._lock = threading.Lock()

    def save(self, step: int, state: Mapping[str, Any]) -> RDMABuffer:
        """Store the state of a step, and return the memory with it."""
        encoded = encode_state(state)
        return self._write(step, encoded.nbytes, lambda memory: encoded.write(step, memory))

    def copy(self, step: int, source: RDMABuffer, timeout: float | None = None) -> None:
        """Store a copy of the checkpoint of another process.

        Raises:
            RDMAError: The source is gone, or no longer has this step, or the copy was cancelled.
        """
        nbytes = source.size()

        def fill(memory: memoryview) -> None:
            self._copying = source.read_into(memory[:nbytes], timeout=timeout)
            self._copying.get()

        self._write(step, nbytes, fill)

    def end_copy(self, grace_s: float) -> None:
        """Cancel the copy in progress if it does not end within this time."""
        copying = self._copying
        if copying is not None and wait([copying], timeout=grace_s).pending:
            copying.cancel()

    def steps(self) -> list[int]:
        """Return the steps whose checkpoints are kept."""
        with self._lock:
            return sorted(self._kept)

    def memory(self, step: int) -> RDMABuffer:
        """Return the memory of the checkpoint of a step.

        The memory is not reused as long as the caller keeps the returned buffer.

        Raises:
            CheckpointCorrupt: No such checkpoint is kept.
        """
        with self._lock:
            kept = self._kept.get(step)
            if kept is None:
                raise CheckpointCorrupt(f"the checkpoint of step {step} is no longer kept")
            version, memory = kept
            return version.buffer[: len(memory)]

    def drop_after(self, step: int) -> None:
        """Drop the checkpoints of later steps."""
        with self._lock:
            for later in [kept for kept in self._kept if kept > step]:
                self._kept.pop(later)[0].release()

    def damage(self) -> None:
        """Change a bit in the middle of each checkpoint, for tests."""
        with self._lock:
            for _, memory in self._kept.values():
                memory[len(memory) // 2] ^= 1

    def _write(self, step: int, nbytes: int, fill: Callable[[memoryview], object]) -> RDMABuffer:
        if self._memory is None or self._memory.size() < nbytes:
            # The previous memory remains as long as a version of it is kept.
            self._memory = VersionedBuffer(nbytes, versions=_VERSIONS)
        with ExitStack() as stack:
            try:
                memory = stack.enter_context(self._memory.write(timeout=_WRITE_TIMEOUT_S))
            except RDMATimeout:
                # Some process still reads old versions, or was stopped while it read them.
                self._memory = VersionedBuffer(nbytes, versions=_VERSIONS)
                memory = stack.enter_context(self._memory.write())
            fill(memory)
        version = self._memory.reader().hold()
        with self._lock:
            previous = self._kept.pop(step, None)
            if previous is not None:
                previous[0].release()
            self._kept[step] = (version, memory[:nbytes])
            for old in sorted(self._kept)[:-_KEPT]:
                self._kept.pop(old)[0].release()
        return version.buffer[:nbytes]
