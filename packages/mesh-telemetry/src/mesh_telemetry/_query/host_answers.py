"""Sends fragments to all hosts, and tracks which hosts have answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread

import pyarrow as pa

from mesh_telemetry._errors import CoverageError, QueryError
from mesh_telemetry._query.coverage import Coverage, HostFailure, TransferStats
from mesh_telemetry._query.deadline import remaining_s
from mesh_telemetry._query.fragment import QUERY_FAULT, TOO_MUCH, Fragment, QueriedHost, ShardAnswer
from mesh_telemetry._rows.plain_types import cast_batch

__all__ = ["HostAnswers", "SendFragment"]

SendFragment = Callable[[Fragment], Iterable[QueriedHost | ShardAnswer]]
_Item = tuple[int, QueriedHost | ShardAnswer | BaseException | None]
_NOBODY = "(unknown hosts)"


class HostAnswers:
    """The answers of all hosts to the fragments of one query.

    Args:
        ask: Sends a fragment to every host and returns an iterable with one answer of each, as they
            arrive. It should send when it is called, so that the fragments of a round run
            concurrently. The iterable may first yield the hosts that were queried, so that hosts
            which never answer can be named. It may have a `close`, which is called when no more
            answers are needed.
        deadline: Until when answers count, on `time.monotonic()`.
        memory_max_bytes: Limit for all answers together in this process.
    """

    def __init__(self, ask: SendFragment, deadline: float, memory_max_bytes: int) -> None:
        self._memory_left_bytes = memory_max_bytes
        self._ask = ask
        self._deadline = deadline
        self._hosts: set[str] = set()
        self._failures: dict[str, str] = {}
        self._shipped: dict[str, tuple[int, int]] = {}

    def round(self, fragments: list[tuple[str, Fragment, pa.Schema]]) -> list[pa.Table]:
        """Send fragments to all hosts, and return the rows of each fragment.

        Args:
            fragments: Each with the table that it is accounted to, and the columns of its rows.

        Raises:
            QueryError: A host reports that the query is at fault.
        """
        wanted = [fragment for _, fragment, _ in fragments]
        batches: list[list[pa.RecordBatch]] = [[] for _ in fragments]
        heard: list[set[str]] = [set() for _ in fragments]
        open_count = len(fragments)
        sender = _FragmentSender(self._ask, wanted)
        try:
            with suppress(Empty):
                while open_count:
                    at, item = sender.answers.get(timeout=remaining_s(self._deadline))
                    if item is None:
                        open_count -= 1
                    elif isinstance(item, BaseException):
                        raise item
                    elif isinstance(item, QueriedHost):
                        self._hosts.add(item.host)
                    else:
                        heard[at].add(item.host)
                        batches[at] += self._take(item, *fragments[at])
        finally:
            sender.close()
        self._note_late(heard, is_over=open_count == 0)
        return [
            pa.Table.from_batches(each, schema)
            for each, (_, _, schema) in zip(batches, fragments, strict=True)
        ]

    def alone(self, table: str, fragment: Fragment, schema: pa.Schema) -> pa.Table:
        """Send one fragment, and wait for its rows in the calling thread.

        `ask` must not block beyond the deadline.

        Raises:
            QueryError: A host reports that the query is at fault.
        """
        batches: list[pa.RecordBatch] = []
        asked = self._ask(fragment)
        try:
            for item in asked:
                self._hosts.add(item.host)
                if isinstance(item, ShardAnswer):
                    batches += self._take(item, table, fragment, schema)
        finally:
            _close(asked)
        return pa.Table.from_batches(batches, schema)

    def stream(self, table: str, fragment: Fragment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Send one fragment to all hosts, and yield its rows as hosts answer.

        Hosts stop computing when the iterator is closed.

        Raises:
            QueryError: A host reports that the query is at fault.
        """
        heard: set[str] = set()
        is_over = False
        sender = _FragmentSender(self._ask, [fragment])
        try:
            with suppress(Empty):
                while True:
                    _, item = sender.answers.get(timeout=remaining_s(self._deadline))
                    if item is None:
                        is_over = True
                        break
                    if isinstance(item, BaseException):
                        raise item
                    self._hosts.add(item.host)
                    if isinstance(item, ShardAnswer):
                        heard.add(item.host)
                        batches = self._take(item, table, fragment, schema)
                        # The batches are passed on and not kept.
                        self._memory_left_bytes += sum(batch.nbytes for batch in batches)
                        yield from batches
        finally:
            sender.close()
        self._note_late([heard], is_over)

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
        """Check whether enough hosts answered.

        Raises:
            CoverageError: No host answered, or a host did not answer and `require_full` is true.
        """
        failed = tuple(sorted(self._failures.items()))
        if not failed:
            return
        causes = "; ".join(f"{host}: {cause}" for host, cause in failed)
        if len(self._failures) >= len(self._hosts):
            raise CoverageError(f"no host answered ({causes}): fix the cause, or try again", failed)
        if require_full:
            raise CoverageError(
                f"{len(failed)} of {len(self._hosts)} hosts did not answer ({causes}): try again,"
                " increase the timeout, or pass require_full=False",
                failed,
            )

    def _take(
        self, answer: ShardAnswer, table: str, fragment: Fragment, schema: pa.Schema
    ) -> list[pa.RecordBatch]:
        self._hosts.add(answer.host)
        rows, count = self._shipped.get(table, (0, 0))
        if answer.body is None:
            self._fail(answer.host, answer.error or "it reported no cause")
            return []
        try:
            with pa.ipc.open_stream(answer.body) as reader:
                batches = [cast_batch(batch, schema) for batch in reader]
        except (pa.ArrowException, ValueError) as error:
            self._fail(answer.host, f"cannot read its answer: {error}")
            return []
        self._memory_left_bytes -= sum(batch.nbytes for batch in batches)
        if self._memory_left_bytes < 0:
            raise QueryError(
                "the rows of the hosts exceed the memory limit: filter, aggregate, or limit them"
            )
        rows += sum(batch.num_rows for batch in batches)
        self._shipped[table] = rows, count + len(answer.body)
        return batches

    def _fail(self, host: str, cause: str) -> None:
        for fault in (QUERY_FAULT, TOO_MUCH):
            if fault in cause:
                raise QueryError(f"{host}: {cause[cause.index(fault) :]}")
        self._failures.setdefault(host, cause)

    def _note_late(self, heard: list[set[str]], is_over: bool) -> None:
        """Record the hosts that have not answered every fragment."""
        self._hosts |= set().union(*heard)
        if is_over:
            return
        late = {host for host in self._hosts if any(host not in each for each in heard)}
        for host in late or {_NOBODY}:
            self._hosts.add(host)
            self._failures.setdefault(host, "it did not answer in time")


class _FragmentSender:
    """Sends fragments in a separate thread, because a blocked receive must not block the caller."""

    def __init__(self, ask: SendFragment, fragments: list[Fragment]) -> None:
        self.answers: SimpleQueue[_Item] = SimpleQueue()
        self._ask = ask
        self._turn = Lock()
        self._is_over = False
        self._asked: list[Iterable[QueriedHost | ShardAnswer]] = []
        Thread(target=self._run, args=(fragments,), name="mesh-telemetry-ask", daemon=True).start()

    def close(self) -> None:
        """Stop waiting for answers."""
        with self._turn:
            self._is_over = True
            asked = list(self._asked)
        for each in asked:
            _close(each)

    def _run(self, fragments: list[Fragment]) -> None:
        try:
            for fragment in fragments:
                each = self._ask(fragment)
                with self._turn:
                    self._asked.append(each)
                    is_over = self._is_over
                if is_over:
                    _close(each)
                    return
            for at, each in enumerate(self._asked):
                for answer in each:
                    self.answers.put((at, answer))
                self.answers.put((at, None))
        except BaseException as error:
            self.answers.put((0, error))


def _close(asked: Iterable[QueriedHost | ShardAnswer]) -> None:
    close = getattr(asked, "close", None)
    if close is not None:
        # A generator that is running in its thread cannot be closed; it ends on its own later.
        with suppress(ValueError):
            close()
