"""Sends fragments to all hosts, and tracks which hosts have replied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread

import pyarrow as pa

from mesh_telemetry._errors import CoverageError, QueryError
from mesh_telemetry._query.coverage import Coverage, HostFailure, TransferStats
from mesh_telemetry._query.deadline import remaining_s
from mesh_telemetry._query.fragment import (
    QUERY_FAULT,
    TOO_MUCH,
    Fragment,
    FragmentReply,
    QueriedHost,
)
from mesh_telemetry._rows.plain_types import cast_batch

__all__ = ["HostReplies", "SendFragment"]

SendFragment = Callable[[Fragment], Iterable[QueriedHost | FragmentReply]]
_Item = tuple[int, QueriedHost | FragmentReply | BaseException | None]
_UNKNOWN_HOST = "(unknown hosts)"


class HostReplies:
    """The replies of all hosts to the fragments of one query.

    Args:
        send_fragment: Sends a fragment to every host and returns an iterable with one reply of
            each, as they arrive. It should send when it is called, so that the fragments of a
            query run concurrently. The iterable may first yield the hosts that were queried, so
            that hosts which never reply can be named. It may have a `close`, which is called when
            no more replies are needed.
        deadline: Until when replies count, on `time.monotonic()`.
        memory_max_bytes: Limit for all replies together in this process.
    """

    def __init__(self, send_fragment: SendFragment, deadline: float, memory_max_bytes: int) -> None:
        self._memory_left_bytes = memory_max_bytes
        self._send_fragment = send_fragment
        self._deadline = deadline
        self._hosts: set[str] = set()
        self._failures: dict[str, str] = {}
        self._shipped: dict[str, tuple[int, int]] = {}

    def run(self, fragments: list[tuple[str, Fragment, pa.Schema]]) -> list[pa.Table]:
        """Send fragments to all hosts, and return the rows of each fragment.

        Args:
            fragments: Each with the table that it is accounted to, and the columns of its rows.

        Raises:
            QueryError: A host reports that the query is at fault.
        """
        wanted = [fragment for _, fragment, _ in fragments]
        batches: list[list[pa.RecordBatch]] = [[] for _ in fragments]
        replied: list[set[str]] = [set() for _ in fragments]
        open_count = len(fragments)
        sender = _FragmentSender(self._send_fragment, wanted)
        try:
            with suppress(Empty):
                while open_count:
                    at, item = sender.replies.get(timeout=remaining_s(self._deadline))
                    if item is None:
                        open_count -= 1
                    elif isinstance(item, BaseException):
                        raise item
                    elif isinstance(item, QueriedHost):
                        self._hosts.add(item.host)
                    else:
                        replied[at].add(item.host)
                        batches[at] += self._decode(item, *fragments[at])
        finally:
            sender.close()
        self._record_late(replied, is_over=open_count == 0)
        return [
            pa.Table.from_batches(each, schema)
            for each, (_, _, schema) in zip(batches, fragments, strict=True)
        ]

    def run_on_only_host(self, table: str, fragment: Fragment, schema: pa.Schema) -> pa.Table:
        """Send one fragment, and wait for its rows in the calling thread.

        `send_fragment` must not block beyond the deadline.

        Raises:
            QueryError: A host reports that the query is at fault.
        """
        batches: list[pa.RecordBatch] = []
        request = self._send_fragment(fragment)
        try:
            for item in request:
                self._hosts.add(item.host)
                if isinstance(item, FragmentReply):
                    batches += self._decode(item, table, fragment, schema)
        finally:
            _close(request)
        return pa.Table.from_batches(batches, schema)

    def stream(self, table: str, fragment: Fragment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Send one fragment to all hosts, and yield its rows as hosts reply.

        Hosts stop computing when the iterator is closed.

        Raises:
            QueryError: A host reports that the query is at fault.
        """
        replied: set[str] = set()
        is_over = False
        sender = _FragmentSender(self._send_fragment, [fragment])
        try:
            with suppress(Empty):
                while True:
                    _, item = sender.replies.get(timeout=remaining_s(self._deadline))
                    if item is None:
                        is_over = True
                        break
                    if isinstance(item, BaseException):
                        raise item
                    self._hosts.add(item.host)
                    if isinstance(item, FragmentReply):
                        replied.add(item.host)
                        batches = self._decode(item, table, fragment, schema)
                        # The batches are passed on and not kept.
                        self._memory_left_bytes += sum(batch.nbytes for batch in batches)
                        yield from batches
        finally:
            sender.close()
        self._record_late([replied], is_over)

    def coverage(self) -> Coverage:
        """Return the coverage so far."""
        failed = sorted(self._failures.items())
        return Coverage(
            tuple(sorted(self._hosts)),
            tuple(sorted(self._hosts - self._failures.keys())),
            tuple(HostFailure(host, cause) for host, cause in failed),
            tuple(
                TransferStats(table, rows, count)
                for table, (rows, count) in sorted(self._shipped.items())
            ),
        )

    def check(self, require_full: bool) -> None:
        """Check whether enough hosts replied.

        Raises:
            CoverageError: No host replied, or a host did not reply and `require_full` is true.
        """
        failed = tuple(sorted(self._failures.items()))
        if not failed:
            return
        causes = "; ".join(f"{host}: {cause}" for host, cause in failed)
        if len(self._failures) >= len(self._hosts):
            raise CoverageError(f"no host replied ({causes}): fix the cause, or try again", failed)
        if require_full:
            raise CoverageError(
                f"{len(failed)} of {len(self._hosts)} hosts did not reply ({causes}): try again,"
                " increase the timeout, or pass require_full=False",
                failed,
            )

    def _decode(
        self, reply: FragmentReply, table: str, fragment: Fragment, schema: pa.Schema
    ) -> list[pa.RecordBatch]:
        self._hosts.add(reply.host)
        rows, count = self._shipped.get(table, (0, 0))
        if reply.body is None:
            self._fail(reply.host, reply.error or "it reported no cause")
            return []
        try:
            with pa.ipc.open_stream(reply.body) as reader:
                batches = [cast_batch(batch, schema) for batch in reader]
        except (pa.ArrowException, ValueError) as error:
            self._fail(reply.host, f"cannot read its reply: {error}")
            return []
        self._memory_left_bytes -= sum(batch.nbytes for batch in batches)
        if self._memory_left_bytes < 0:
            raise QueryError(
                "the rows of the hosts exceed the memory limit: filter, aggregate, or limit them"
            )
        rows += sum(batch.num_rows for batch in batches)
        self._shipped[table] = rows, count + len(reply.body)
        return batches

    def _fail(self, host: str, cause: str) -> None:
        for fault in (QUERY_FAULT, TOO_MUCH):
            if fault in cause:
                raise QueryError(f"{host}: {cause[cause.index(fault) :]}")
        self._failures.setdefault(host, cause)

    def _record_late(self, replied: list[set[str]], is_over: bool) -> None:
        """Record the hosts that have not replied to every fragment."""
        self._hosts |= set().union(*replied)
        if is_over:
            return
        late = {host for host in self._hosts if any(host not in each for each in replied)}
        for host in late or {_UNKNOWN_HOST}:
            self._hosts.add(host)
            self._failures.setdefault(host, "it did not reply in time")


class _FragmentSender:
    """Sends fragments in a separate thread, because a blocked receive must not block the caller."""

    def __init__(self, send_fragment: SendFragment, fragments: list[Fragment]) -> None:
        self.replies: SimpleQueue[_Item] = SimpleQueue()
        self._send_fragment = send_fragment
        self._lock = Lock()
        self._is_over = False
        self._requests: list[Iterable[QueriedHost | FragmentReply]] = []
        Thread(
            target=self._run, args=(fragments,), name="mesh-telemetry-send_fragment", daemon=True
        ).start()

    def close(self) -> None:
        """Stop waiting for replies."""
        with self._lock:
            self._is_over = True
            request = list(self._requests)
        for each in request:
            _close(each)

    def _run(self, fragments: list[Fragment]) -> None:
        try:
            for fragment in fragments:
                each = self._send_fragment(fragment)
                with self._lock:
                    self._requests.append(each)
                    is_over = self._is_over
                if is_over:
                    _close(each)
                    return
            for at, each in enumerate(self._requests):
                for reply in each:
                    self.replies.put((at, reply))
                self.replies.put((at, None))
        except BaseException as error:
            self.replies.put((0, error))


def _close(request: Iterable[QueriedHost | FragmentReply]) -> None:
    close = getattr(request, "close", None)
    if close is not None:
        # A generator that is running in its thread cannot be closed; it ends on its own later.
        with suppress(ValueError):
            close()
