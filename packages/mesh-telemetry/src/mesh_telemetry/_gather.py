"""Asks all hosts, and keeps account of who answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread

import pyarrow as pa

from mesh_telemetry._coverage import Coverage, HostFailure, Shipped
from mesh_telemetry._deadline import remaining_s
from mesh_telemetry._errors import CoverageError, QueryError
from mesh_telemetry._fragment import QUERY_FAULT, TOO_MUCH, Fragment, ShardAnswer
from mesh_telemetry._plain_types import cast_batch

__all__ = ["Ask", "Gathering"]

Ask = Callable[[Fragment], Iterable[ShardAnswer]]
_Item = tuple[int, ShardAnswer | BaseException | None]
_NOBODY = "(hosts that did not say their name)"


class Gathering:
    """The answers of all hosts to the fragments of one query.

    Args:
        ask: Sends a fragment to every host, and gives one answer of each as they come. It should
            send when it is called: then the fragments of a round are under way together.
        deadline: Until when answers count, on `time.monotonic()`.
        memory_max_bytes: All that comes together may take so much here.
    """

    def __init__(self, ask: Ask, deadline: float, memory_max_bytes: int) -> None:
        self._memory_left_bytes = memory_max_bytes
        self._ask = ask
        self._deadline = deadline
        self._hosts: set[str] = set()
        self._failures: dict[str, str] = {}
        self._shipped: dict[str, tuple[int, int]] = {}

    def round(self, fragments: list[tuple[str, Fragment, pa.Schema]]) -> list[pa.Table]:
        """Asks for some fragments, and gives the rows of each.

        Args:
            fragments: Each with the table that it is accounted to, and the columns that come.

        Raises:
            QueryError: A host says that the query is to blame.
        """
        # The thread is ours alone: what waits for a host must not outlive the deadline.
        answers: SimpleQueue[_Item] = SimpleQueue()
        wanted = [fragment for _, fragment, _ in fragments]
        Thread(
            target=_ask_all,
            args=(self._ask, wanted, answers),
            name="mesh-telemetry-ask",
            daemon=True,
        ).start()
        batches: list[list[pa.RecordBatch]] = [[] for _ in fragments]
        heard: list[set[str]] = [set() for _ in fragments]
        open_count = len(fragments)
        with suppress(Empty):
            while open_count:
                at, item = answers.get(timeout=remaining_s(self._deadline))
                if item is None:
                    open_count -= 1
                elif isinstance(item, BaseException):
                    raise item
                else:
                    heard[at].add(item.host)
                    batches[at] += self._take(item, *fragments[at])
        self._note_late(heard, is_over=open_count == 0)
        return [
            pa.Table.from_batches(each, schema)
            for each, (_, _, schema) in zip(batches, fragments, strict=True)
        ]

    def alone(self, table: str, fragment: Fragment, schema: pa.Schema) -> pa.Table:
        """Asks for one fragment in the calling thread, which `ask` must not hold past the deadline.

        Raises:
            QueryError: A host says that the query is to blame.
        """
        batches: list[pa.RecordBatch] = []
        for answer in self._ask(fragment):
            batches += self._take(answer, table, fragment, schema)
        return pa.Table.from_batches(batches, schema)

    def coverage(self) -> Coverage:
        """Says who answered so far."""
        failed = sorted(self._failures.items())
        return Coverage(
            tuple(sorted(self._hosts)),
            tuple(sorted(self._hosts - self._failures.keys())),
            tuple(HostFailure(host, cause) for host, cause in failed),
            tuple(
                Shipped(table, rows, count)
                for table, (rows, count) in sorted(self._shipped.items())
            ),
        )

    def check(self, require_full: bool) -> None:
        """Sees whether enough hosts answered.

        Raises:
            CoverageError: None of them did, or not all and `require_full` is true.
        """
        failed = tuple(sorted(self._failures.items()))
        if not failed:
            return
        causes = "; ".join(f"{host}: {cause}" for host, cause in failed)
        if len(self._failures) >= len(self._hosts):
            raise CoverageError(f"no host answered ({causes}): see why, or ask again", failed)
        if require_full:
            raise CoverageError(
                f"{len(failed)} of {len(self._hosts)} hosts did not answer ({causes}): ask again,"
                " allow more time, or do without them (require_full=False)",
                failed,
            )

    def _take(
        self, answer: ShardAnswer, table: str, fragment: Fragment, schema: pa.Schema
    ) -> list[pa.RecordBatch]:
        self._hosts.add(answer.host)
        rows, count = self._shipped.get(table, (0, 0))
        if answer.body is None:
            self._fail(answer.host, answer.error or "it gave no cause")
            return []
        try:
            with pa.ipc.open_stream(answer.body) as reader:
                batches = [cast_batch(batch, schema) for batch in reader]
        except (pa.ArrowException, ValueError) as error:
            self._fail(answer.host, f"its answer cannot be read: {error}")
            return []
        self._memory_left_bytes -= sum(batch.nbytes for batch in batches)
        if self._memory_left_bytes < 0:
            raise QueryError("the hosts send more than fits here: filter, aggregate, or limit them")
        rows += sum(batch.num_rows for batch in batches)
        self._shipped[table] = rows, count + len(answer.body)
        return batches

    def _fail(self, host: str, cause: str) -> None:
        for fault in (QUERY_FAULT, TOO_MUCH):
            if fault in cause:
                raise QueryError(f"{host}: {cause[cause.index(fault) :]}")
        self._failures.setdefault(host, cause)

    def _note_late(self, heard: list[set[str]], is_over: bool) -> None:
        """Finds the hosts that answered one fragment and not another."""
        self._hosts |= set().union(*heard)
        if is_over:
            return
        late = {host for host in self._hosts if any(host not in each for each in heard)}
        for host in late or {_NOBODY}:
            self._hosts.add(host)
            self._failures.setdefault(host, "late: it did not answer in time")


def _ask_all(ask: Ask, fragments: list[Fragment], answers: SimpleQueue[_Item]) -> None:
    try:
        asked = [ask(fragment) for fragment in fragments]
        for at, each in enumerate(asked):
            for answer in each:
                answers.put((at, answer))
            answers.put((at, None))
    except BaseException as error:
        answers.put((0, error))
