"""The coordinator of a spread tree, in the process that called `spread`.

The coordinator starts the node of each destination once its source has bytes, and assigns another
source to a node whose source has failed. No bytes of the buffer pass through it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from mesh_rdma._collectives.tree import chunk_len, parents
from mesh_rdma._collectives.tree_node import FAIL, SOURCE, TREE_NODE, encode_payload, encode_source
from mesh_rdma._completions.settled_group import raise_failures
from mesh_rdma._completions.thread_pool import run_in_thread
from mesh_rdma._errors import RDMACancelled, RDMAError
from mesh_rdma._operations.remote_operation import RemoteOperation, Report
from mesh_rdma._operations.server import Command, State
from mesh_rdma._requests.error_encoding import decode_error, encode_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mesh_rdma._buffers.buffer import RDMABuffer

__all__ = ["TreeCoordinator", "machine_of"]


def machine_of(buffer: RDMABuffer) -> bytes:
    """Return the identity of the machine that a buffer is on."""
    return buffer._handle.machine


class _Node(RemoteOperation):
    """One destination: its owner copies from the parent of the node."""

    def __init__(self, coordinator: TreeCoordinator, place: int, payload: bytes) -> None:
        handle = coordinator.dsts[place]._handle
        buffers = coordinator.src, coordinator.dsts
        super().__init__(handle, TREE_NODE, payload, coordinator.left(), buffers)
        self._coordinator = coordinator
        self._place = place

    def on_report(self, report: Report) -> Report:
        if report.state is not State.WAITING:
            self._coordinator.on_started(self._place, report.extra)
            return report
        error = decode_error(report.extra)
        source, is_hopeless = self._coordinator.find_source(self._place)
        if source is not None:
            return self.request(SOURCE, source)
        if is_hopeless:
            failure = self._coordinator.failure_of(self._place, error)
            return self.request(FAIL, encode_error(failure))
        return report

    def release(self) -> None:
        """Release the progress word that the children have read."""
        try:
            self.request(Command.END)
        except RDMAError:
            # The process has died or does not respond: the node ends by its own timeout.
            return


class TreeCoordinator:
    """A spread in progress, as a `mesh_core.spi.Completion`."""

    def __init__(self, src: RDMABuffer, dsts: Sequence[RDMABuffer], timeout: float | None) -> None:
        self.src, self.dsts = src, list(dsts)
        self._until = None if timeout is None else time.monotonic() + timeout
        self._length = src.size()
        self._machines = [machine_of(dst) for dst in self.dsts]
        self._parents = parents(self._machines, machine_of(src), self._length)
        self._nodes: dict[int, _Node] = {}
        self._progress: dict[int, bytes] = {}
        self._complete: set[int] = set()
        self._failures: dict[int, RDMAError] = {}
        self._orphans: set[int] = set()
        #: Nodes that keep their progress word until the coordinator releases it.
        self._kept: set[int] = set()
        #: The sources of each node that have failed or could not be reached.
        self._failed_sources: list[set[int | None]] = [set() for _ in self.dsts]
        self._is_cancelled = False
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._callbacks: list[Callable[[], object]] = []

    def start(self) -> TreeCoordinator:
        """Start the nodes that copy from the source itself."""
        with self._lock:
            roots = [p for p, parent in enumerate(self._parents) if parent is None]
            created = self._create_nodes(roots)
        for node in created:
            node.start()
        return self

    def left(self) -> float | None:
        """Return the seconds until the deadline, or None if there is no limit."""
        return None if self._until is None else max(self._until - time.monotonic(), 0.0)

    def wait(self, timeout: float | None) -> bool:
        """Wait until all nodes have ended; return whether they have."""
        return self._done.wait(timeout)

    def is_done(self) -> bool:
        """Return whether all nodes have ended."""
        return self._done.is_set()

    def outcome(self) -> None:
        """Raise the failures of the nodes, if any failed."""
        raise_failures(self._failures, len(self.dsts), self._is_cancelled)

    def cancel(self) -> bool:
        """Cancel all nodes; after this returns no byte is written."""
        with self._lock:
            if self._done.is_set():
                return False
            self._is_cancelled = True
            nodes = list(self._nodes.values())
        for node in nodes:
            run_in_thread(node.cancel)
        self._done.wait()
        return any(isinstance(error, RDMACancelled) for error in self._failures.values())

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` once all nodes have ended."""
        with self._lock:
            if not self._done.is_set():
                self._callbacks.append(callback)
                return
        callback()

    def on_started(self, place: int, progress: bytes) -> None:
        """Start the children of a node that has reported its progress word."""
        if not progress or place in self._progress:
            return
        with self._lock:
            self._progress[place] = progress
            created = self._create_nodes(self._unstarted_children(place))
        for node in created:
            node.start()

    def find_source(self, place: int) -> tuple[bytes | None, bool]:
        """Find another source for a node; if there is none, also return whether none can appear."""
        with self._lock:
            if place not in self._orphans:
                self._orphans.add(place)
                self._failed_sources[place].add(self._parents[place])
            found = next(self._source_candidates(place), "none")
            if not isinstance(found, str):
                self._parents[place] = found
                self._orphans.discard(place)
                return self._source(found), False
            running = self._nodes.keys() - self._complete - self._failures.keys() - self._orphans
            is_hopeless = not any(self._may_copy_from(place, one) for one in running)
            return None, is_hopeless

    def failure_of(self, place: int, error: RDMAError) -> RDMAError:
        """Return why a node fails: the error of a failed source, or else the error of the node."""
        with self._lock:
            failures = self._failures
            failed = [failures[one] for one in self._failed_sources[place] if one in failures]
        return failed[0] if failed else error

    def _create_nodes(self, places: Sequence[int]) -> list[_Node]:
        """Create the nodes of some destinations; the caller starts them without the lock."""
        created = []
        for place in places:
            if self._is_cancelled:
                words = "the transfer was cancelled before it began"
                self._failures[place] = RDMACancelled(words)
                continue
            dst, source = self.dsts[place], self._source(self._parents[place])
            has_children = place in self._parents
            if has_children:
                self._kept.add(place)
            chunk = chunk_len(self._length)
            payload = encode_payload(
                dst._handle, dst._offset, self._length, chunk, has_children, source
            )
            node = self._nodes[place] = _Node(self, place, payload)
            node.when_done(lambda node=node, place=place: self._ended(node, place))  # type: ignore[misc]
            created.append(node)
        return created

    def _source(self, parent: int | None) -> bytes:
        if parent is None:
            return encode_source(self.src._handle, self.src._offset, b"")
        buffer = self.dsts[parent]
        progress = b"" if parent in self._complete else self._progress[parent]
        return encode_source(buffer._handle, buffer._offset, progress)

    def _ended(self, node: _Node, place: int) -> None:
        error = None
        try:
            node.outcome()
        except RDMAError as failure:
            error = failure
        except Exception as failure:
            error = RDMAError(f"{type(failure).__name__}: {failure}")
        with self._lock:
            self._orphans.discard(place)
            if error is None:
                self._complete.add(place)
            else:
                self._failures[place] = error
            created = self._create_nodes(self._orphaned_children(place))
            is_last = len(self._complete) + len(self._failures) == len(self.dsts)
            if is_last:
                self._done.set()
            callbacks = self._callbacks if is_last else []
        for one in created:
            one.start()
        if is_last:
            for kept in self._kept:
                run_in_thread(self._nodes[kept].release)
            for callback in callbacks:
                callback()

    def _orphaned_children(self, place: int) -> list[int]:
        """Assign a source to the unstarted children of a node that has ended; return them."""
        children = self._unstarted_children(place)
        if place in self._failures:
            for child in children:
                self._failed_sources[child].add(place)
                # The source itself is always a candidate here.
                self._parents[child] = next(self._source_candidates(child), None)
        return children

    def _unstarted_children(self, place: int) -> list[int]:
        children = [p for p, parent in enumerate(self._parents) if parent == place]
        return [child for child in children if child not in self._nodes]

    def _source_candidates(self, place: int) -> Iterator[int | None]:
        """Yield the sources that a node may copy from, the nearest first."""
        failed_sources = self._failed_sources[place]
        machine = self._machines[place]
        able = [one for one in range(len(self.dsts)) if self._may_copy_from(place, one)]
        able = [one for one in able if one in self._complete or one in self._progress]
        near = [one for one in able if self._machines[one] == machine]
        near.sort(key=lambda one: one not in self._complete)
        yield from near
        parent = self._parents[place]
        while parent is not None:
            parent = self._parents[parent]
            if parent in able:
                yield parent
        if None not in failed_sources:
            yield None
        yield from sorted(able, key=lambda one: one not in self._complete)

    def _may_copy_from(self, place: int, other: int) -> bool:
        """Return whether a node may copy from another one, which must not wait for it in turn."""
        if other in self._failed_sources[place] or other in self._failures:
            return False
        parent: int | None = other
        while parent is not None and other not in self._complete:
            if parent == place:
                return False
            parent = self._parents[parent]
        return other != place
