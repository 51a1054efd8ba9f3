"""Distributes transfers over the rails to another process, and replaces failed rails."""

from __future__ import annotations

import select
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from copy import copy

from mesh_rdma._errors import RDMAPeerDied
from mesh_rdma._verbs.binding import FLUSHED, SUCCESS, Opcode, WorkRequest
from mesh_rdma._verbs.connection import ATOMICS, Connector, Rail
from mesh_rdma._verbs.errors import error_of, is_refusal, unregistered
from mesh_rdma._verbs.registrations import Registrations
from mesh_rdma._verbs.transfer import Piece, Transfer
from mesh_rdma._verbs.work_queue import FinishedPiece

#: The maximum length of a work request, regardless of the limit of the port.
PIECE_MAX = 1 << 30

#: If there are several rails, pieces have at least this length.
STRIPE_MIN = 1 << 20

#: A transfer is split into about this many pieces per rail, so a faster rail takes more of them.
STRIPES_PER_RAIL = 4

#: The maximum number of attempts for a piece that failed because of another piece.
ATTEMPTS_MAX = 3


#: The maximum number of transfers that wait for capacity in a rail; further callers block.
WAITING_LEN_MAX = 1024

#: How long to poll before waiting for a notification; small transfers take less than this.
SPIN_S = 0.00005

#: The maximum duration of one wait, because it does not cover rails that others connect later.
PAUSE_S = 0.01

#: The same, if the binding does not support notifications of completions.
UNNOTIFIED_PAUSE_S = 0.0002


class RailGroup:
    """A group of interchangeable rails, and the transfers that wait for them."""

    def __init__(self, connector: Connector, numbers: Sequence[int]) -> None:
        #: The transfers that are not completely split yet, and the pieces to be repeated.
        self.waiting: deque[Transfer] = deque()
        self.repeats: deque[Piece] = deque()
        self.rails: list[Rail] = []
        self._connector = connector
        self._numbers = list(numbers)
        self._reached = self._numbers

    def connect(self) -> None:
        """Connect missing rails: initially all rails, later the rails that have failed.

        Raises:
            RDMAPeerDied: The other process has died.
            Exception: No rail is connected, and none can be.
        """
        if not self.rails:
            self._reached = self._numbers
        connected = {rail.number for rail in self.rails}
        missing = [number for number in self._reached if number not in connected]
        if missing:
            try:
                self.rails += self._connector.connect(missing)
            except RDMAPeerDied:
                raise
            except Exception:
                if not self.rails:
                    raise
            # The rails that could not be connected are retried when none of these is left.
            self._reached = [rail.number for rail in self.rails]

    @property
    def piece_len_max(self) -> int:
        """The maximum piece length that all rails support."""
        return min(PIECE_MAX, *(rail.message_max for rail in self.rails))

    def next_piece(self) -> Piece | None:
        """Remove and return the next piece."""
        while self.repeats:
            piece = self.repeats.popleft()
            if piece.transfer.is_wanted:
                return piece
        while self.waiting:
            transfer = self.waiting[0]
            if transfer.is_wanted and transfer.split_len < transfer.length:
                return self._cut(transfer)
            self.waiting.popleft()
        return None

    def _cut(self, transfer: Transfer) -> Piece:
        most = self.piece_len_max
        if len(self.rails) > 1:
            share = -(-transfer.length // (STRIPES_PER_RAIL * len(self.rails)))
            most = min(most, max(share, STRIPE_MIN))
        piece = Piece(transfer, transfer.split_len, min(most, transfer.length - transfer.split_len))
        transfer.split_len += piece.length
        transfer.pieces += 1
        return piece


class RailScheduler:
    """Executes transfers concurrently; any thread can submit them.

    A failure of one transfer does not affect the others: transfers of a failed rail are repeated in
    the next one, unless they might be executed twice.
    """

    def __init__(self, connector: Connector, registrations: Registrations, count: int) -> None:
        self._connector = connector
        self._registrations = registrations
        self._lock = threading.RLock()
        self._bulk = RailGroup(connector, range(count))
        self._atomics = RailGroup(connector, [ATOMICS])
        self._transfers: set[Transfer] = set()
        self._over: list[Transfer] = []
        self._end: Exception | None = None
        self._death: RDMAPeerDied | None = None

    def connect(self) -> None:
        """Connect the rails; otherwise, the first transfer connects them.

        Raises:
            RDMATransportError: No rail can be connected.
            Exception: The request to the other process failed.
        """
        with self._lock:
            self._bulk.connect()

    def start(self, transfer: Transfer) -> None:
        """Start a transfer; wait if too many transfers are waiting.

        Raises:
            Exception: The rails were closed or have failed.
        """
        group = self._atomics if transfer.is_atomic else self._bulk
        while True:
            with self._lock:
                if self._end:
                    self._registrations.release(transfer.local)
                    # A copy is raised, because a raised exception keeps all frames of its traceback
                    # alive.
                    raise copy(self._end)
                if len(group.waiting) < WAITING_LEN_MAX:
                    self._transfers.add(transfer)
                    group.waiting.append(transfer)
                    self._settle(transfer)
                    self._push(group)
                    return
                self._progress()
            self._wait(PAUSE_S)

    def finished(self, timeout: float) -> list[Transfer]:
        """Return finished transfers and drive the others; wait up to `timeout` for the first."""
        begun = time.monotonic()
        while True:
            with self._lock:
                self._progress()
                over, self._over = self._over, []
            waited = time.monotonic() - begun
            if over or waited >= timeout:
                return over
            if waited > SPIN_S:
                self._wait(min(timeout - waited, PAUSE_S))

    def abort(self, transfer: Transfer) -> None:
        """Abort a transfer; afterwards, no byte is written by it, on either side."""
        with self._lock:
            if transfer not in self._transfers:
                return
            transfer.is_aborted = True
            group = self._atomics if transfer.is_atomic else self._bulk
            hit = [rail for rail in group.rails if _carries(rail, transfer)]
            for rail in hit:
                self._take(group, rail, self._stop(group, rail))
            self._settle(transfer)
            if hit and transfer.opcode != Opcode.READ and not self._end:
                # The owner discards data that is still in the network when the rail is replaced. If
                # it cannot be replaced, the other process can no longer be reached.
                with suppress(Exception):
                    group.connect()
            self._push(group)

    def end(self, error: Exception) -> None:
        """End all transfers with an error; no more can be started."""
        with self._lock:
            self._end = self._end or copy(error)
            for transfer in self._transfers:
                transfer.error = transfer.error or copy(error)
            for group in (self._bulk, self._atomics):
                for rail in list(group.rails):
                    self._take(group, rail, self._stop(group, rail))
            for transfer in list(self._transfers):
                self._settle(transfer)

    def close(self, error: Exception) -> None:
        """End all transfers, and notify the other process that the channel is closed."""
        with self._lock:
            was_connected = bool(self._bulk.rails or self._atomics.rails)
            self.end(error)
        if was_connected:
            with suppress(Exception):
                self._connector.close_channel()

    def _progress(self) -> None:
        """Process completions, and post as many pieces as the rails have capacity for."""
        for group in (self._bulk, self._atomics):
            for rail in list(group.rails):
                ended = rail.queue.poll()
                if rail.queue.is_broken:
                    ended += self._stop(group, rail)
                self._take(group, rail, ended)
            self._push(group)
        self._end_if_peer_died(self._death)

    def _wait(self, seconds: float) -> None:
        """Wait for completions; other threads can poll and connect rails during the wait."""
        with self._lock:
            queues = [rail.queue for group in (self._bulk, self._atomics) for rail in group.rails]
            armed = [queue.pair.arm() for queue in queues]
            self._progress()
            if self._over:
                return
        descriptors = [one for one in armed if one is not None]
        if len(descriptors) < len(armed):
            seconds = min(seconds, UNNOTIFIED_PAUSE_S)
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1000)

    def _push(self, group: RailGroup) -> None:
        """Post waiting pieces while the rails have capacity."""
        try:
            if (group.waiting or group.repeats) and not self._end:
                group.connect()
            while batches := self._batches(group):
                for rail, batch in batches:
                    self._post(rail, batch)
        except Exception as error:
            self._fail_all(group, error)
            self._end_if_peer_died(error)

    def _batches(self, group: RailGroup) -> list[tuple[Rail, list[Piece]]]:
        """Assign each waiting piece to the least loaded rail that has capacity."""
        batches: dict[Rail, list[Piece]] = {}
        while free := [
            rail for rail in group.rails if rail.queue.free_slots > len(batches.get(rail, ()))
        ]:
            piece = group.next_piece()
            if piece is None:
                break
            rail = min(free, key=lambda one: one.load)
            rail.load += piece.length
            batches.setdefault(rail, []).append(piece)
        return list(batches.items())

    def _post(self, rail: Rail, pieces: list[Piece]) -> None:
        posted = []
        for piece in pieces:
            try:
                posted.append((piece, self._work(rail, piece)))
            except OSError as error:
                piece.transfer.error = piece.transfer.error or unregistered(piece.length, error)
                piece.transfer.pieces -= 1
                rail.load -= piece.length
                self._settle(piece.transfer)
                continue
            piece.attempts += 1
            piece.transfer.in_flight += 1
        if posted:
            rail.queue.post(posted)

    def _work(self, rail: Rail, piece: Piece) -> WorkRequest:
        transfer = piece.transfer
        address, key = self._registrations.keys(transfer.local, rail.device)
        remote_address, remote_key = transfer.remote.keys[rail.remote_device]
        return WorkRequest(
            0,
            transfer.opcode,
            address + transfer.local_offset + piece.offset,
            piece.length,
            key,
            remote_address + transfer.remote_offset + piece.offset,
            remote_key,
            operand=transfer.operand,
            swap=transfer.swap,
        )

    def _stop(self, group: RailGroup, rail: Rail) -> list[FinishedPiece[Piece]]:
        """Stop a rail; return its pieces in flight."""
        group.rails.remove(rail)
        return rail.queue.stop()

    def _take(self, group: RailGroup, rail: Rail, ended: Sequence[FinishedPiece[Piece]]) -> None:
        """Process ended pieces; repeat pieces of a failed rail if that is allowed."""
        failed = next((one for one in ended if one.status not in (SUCCESS, FLUSHED)), None)
        if failed and rail.cause is None:
            rail.cause = failed
            rail.error = self._error_of(group, failed)
        again: list[Piece] = []
        for one in ended:
            piece, transfer = one.piece, one.piece.transfer
            rail.load -= piece.length
            transfer.in_flight -= 1
            if one.status == SUCCESS:
                transfer.pieces -= 1
            elif one.status == FLUSHED and _may_repeat(rail, piece):
                again.append(piece)
            elif transfer.is_wanted:
                transfer.error = copy(rail.error) or error_of(one.status, one.reason)
            self._settle(transfer)
        group.repeats.extendleft(reversed(again))

    def _error_of(self, group: RailGroup, failed: FinishedPiece[Piece]) -> Exception:
        """Return the error for a failure; a refusal can mean that the process is dying."""
        if is_refusal(failed.status):
            try:
                group.connect()
            except RDMAPeerDied as error:
                self._death = copy(error)
                return copy(error)
            except Exception:
                # The error is reported to the next transfer that needs a rail.
                pass
        return error_of(failed.status, failed.reason)

    def _end_if_peer_died(self, error: Exception | None) -> None:
        """End all transfers once the other process is known to be dead.

        Otherwise, each rail would retry separately, in some cases for a long time.
        """
        if isinstance(error, RDMAPeerDied) and not self._end:
            self.end(error)

    def _settle(self, transfer: Transfer) -> None:
        """Report a transfer as finished once none of its pieces is in flight."""
        if transfer.is_over and transfer in self._transfers:
            self._transfers.remove(transfer)
            self._registrations.release(transfer.local)
            if not transfer.is_aborted:
                self._over.append(transfer)

    def _fail_all(self, group: RailGroup, error: Exception) -> None:
        """End the transfers that wait for rails that cannot be connected."""
        unserved = [*group.waiting, *(piece.transfer for piece in group.repeats)]
        group.waiting.clear()
        group.repeats.clear()
        for transfer in unserved:
            transfer.error = transfer.error or copy(error)
            self._settle(transfer)


def _carries(rail: Rail, transfer: Transfer) -> bool:
    return any(piece.transfer is transfer for piece in rail.queue.in_flight)


def _may_repeat(rail: Rail, piece: Piece) -> bool:
    """Return whether a piece that ended with its rail may be repeated on another rail.

    If the owner refused an earlier piece, this piece was not executed. If the rail was stopped from
    this side, it may have been executed; repeating it is safe unless it is atomic.
    """
    if not piece.transfer.is_wanted or piece.attempts >= ATTEMPTS_MAX:
        return False
    if rail.cause is None:
        return not piece.transfer.is_atomic
    return is_refusal(rail.cause.status)
