"""The lanes to another process: distributes transfers over lanes, and replaces failed lanes."""

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
from mesh_rdma._verbs.connection import ATOMICS, Connector, Route
from mesh_rdma._verbs.errors import error_of, is_refusal, unregistered
from mesh_rdma._verbs.lane import FinishedPiece
from mesh_rdma._verbs.registrations import Registrations
from mesh_rdma._verbs.transfer import Piece, Transfer

#: The maximum length of a work request, regardless of the limit of the port.
PIECE_MAX = 1 << 30

#: If there are several lanes, pieces have at least this length.
STRIPE_MIN = 1 << 20

#: A transfer is split into about this many pieces per lane, so a faster lane takes more of them.
STRIPES_PER_LANE = 4

#: The maximum number of attempts for a piece that failed because of another piece.
ATTEMPTS_MAX = 3


#: The maximum number of transfers that wait for room in a lane; further callers block.
WAITING_LEN_MAX = 1024

#: How long to poll before waiting for a notification; small transfers take less than this.
SPIN_S = 0.00005

#: The maximum duration of one wait, because it does not cover lanes that others connect later.
PAUSE_S = 0.01

#: The same, if the binding does not support notifications of completions.
UNTOLD_S = 0.0002


class Group:
    """A group of interchangeable lanes, and the transfers that wait for them."""

    def __init__(self, connector: Connector, numbers: Sequence[int]) -> None:
        #: The transfers that are not completely split yet, and the pieces to be repeated.
        self.waiting: deque[Transfer] = deque()
        self.again: deque[Piece] = deque()
        self.routes: list[Route] = []
        self._connector = connector
        self._numbers = list(numbers)
        self._reached = self._numbers

    def connect(self) -> None:
        """Connect missing lanes: initially all of them, later those that have failed.

        Raises:
            RDMAPeerDied: The other process has died.
            Exception: No lane is connected, and none can be.
        """
        if not self.routes:
            self._reached = self._numbers
        connected = {route.number for route in self.routes}
        missing = [number for number in self._reached if number not in connected]
        if missing:
            try:
                self.routes += self._connector.connect(missing)
            except RDMAPeerDied:
                raise
            except Exception:
                if not self.routes:
                    raise
            # The lanes that could not be connected are retried when none of these is left.
            self._reached = [route.number for route in self.routes]

    @property
    def piece_len_max(self) -> int:
        """The maximum piece length that all lanes support."""
        return min(PIECE_MAX, *(route.message_max for route in self.routes))

    def next_piece(self) -> Piece | None:
        """Remove and return the next piece."""
        while self.again:
            piece = self.again.popleft()
            if piece.transfer.is_wanted:
                return piece
        while self.waiting:
            transfer = self.waiting[0]
            if transfer.is_wanted and transfer.cut < transfer.length:
                return self._cut(transfer)
            self.waiting.popleft()
        return None

    def _cut(self, transfer: Transfer) -> Piece:
        most = self.piece_len_max
        if len(self.routes) > 1:
            share = -(-transfer.length // (STRIPES_PER_LANE * len(self.routes)))
            most = min(most, max(share, STRIPE_MIN))
        piece = Piece(transfer, transfer.cut, min(most, transfer.length - transfer.cut))
        transfer.cut += piece.length
        transfer.pieces += 1
        return piece


class Lanes:
    """Executes transfers concurrently; any thread can submit them.

    A failure of one transfer does not affect the others: transfers of a failed lane are repeated in
    the next one, unless they might be executed twice.
    """

    def __init__(self, connector: Connector, registrations: Registrations, lanes: int) -> None:
        self._connector = connector
        self._registrations = registrations
        self._lock = threading.RLock()
        self._bulk = Group(connector, range(lanes))
        self._atomics = Group(connector, [ATOMICS])
        self._transfers: set[Transfer] = set()
        self._over: list[Transfer] = []
        self._end: Exception | None = None
        self._death: RDMAPeerDied | None = None

    def connect(self) -> None:
        """Connect the lanes; otherwise, the first transfer connects them.

        Raises:
            RDMATransportError: No lane can be connected.
            Exception: The request to the other process failed.
        """
        with self._lock:
            self._bulk.connect()

    def start(self, transfer: Transfer) -> None:
        """Start a transfer; wait if too many transfers are waiting.

        Raises:
            Exception: The lanes were closed or have failed.
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
            hit = [route for route in group.routes if _carries(route, transfer)]
            for route in hit:
                self._take(group, route, self._stop(group, route))
            self._settle(transfer)
            if hit and transfer.opcode != Opcode.READ and not self._end:
                # The owner discards data that is still in the network when the lane is replaced. If
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
                for route in list(group.routes):
                    self._take(group, route, self._stop(group, route))
            for transfer in list(self._transfers):
                self._settle(transfer)

    def close(self, error: Exception) -> None:
        """End all transfers, and notify the other process that the channel is closed."""
        with self._lock:
            was_connected = bool(self._bulk.routes or self._atomics.routes)
            self.end(error)
        if was_connected:
            with suppress(Exception):
                self._connector.leave()

    def _progress(self) -> None:
        """Process completions, and post as many pieces as there is room for."""
        for group in (self._bulk, self._atomics):
            for route in list(group.routes):
                ended = route.lane.poll()
                if route.lane.is_broken:
                    ended += self._stop(group, route)
                self._take(group, route, ended)
            self._push(group)
        self._mourn(self._death)

    def _wait(self, seconds: float) -> None:
        """Wait for completions; other threads can poll and connect lanes during the wait."""
        with self._lock:
            lanes = [route.lane for group in (self._bulk, self._atomics) for route in group.routes]
            told = [lane.pair.arm() for lane in lanes]
            self._progress()
            if self._over:
                return
        descriptors = [one for one in told if one is not None]
        if len(descriptors) < len(told):
            seconds = min(seconds, UNTOLD_S)
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1000)

    def _push(self, group: Group) -> None:
        """Post waiting pieces, as far as the lanes have room."""
        try:
            if (group.waiting or group.again) and not self._end:
                group.connect()
            while batches := self._batches(group):
                for route, batch in batches:
                    self._post(route, batch)
        except Exception as error:
            self._fail_all(group, error)
            self._mourn(error)

    def _batches(self, group: Group) -> list[tuple[Route, list[Piece]]]:
        """Distribute waiting pieces over lanes with room, each to the lane with the lowest load."""
        batches: dict[Route, list[Piece]] = {}
        while free := [
            route for route in group.routes if route.lane.room > len(batches.get(route, ()))
        ]:
            piece = group.next_piece()
            if piece is None:
                break
            route = min(free, key=lambda one: one.load)
            route.load += piece.length
            batches.setdefault(route, []).append(piece)
        return list(batches.items())

    def _post(self, route: Route, pieces: list[Piece]) -> None:
        posted = []
        for piece in pieces:
            try:
                posted.append((piece, self._work(route, piece)))
            except OSError as error:
                piece.transfer.error = piece.transfer.error or unregistered(piece.length, error)
                piece.transfer.pieces -= 1
                route.load -= piece.length
                self._settle(piece.transfer)
                continue
            piece.attempts += 1
            piece.transfer.under_way += 1
        if posted:
            route.lane.post(posted)

    def _work(self, route: Route, piece: Piece) -> WorkRequest:
        transfer = piece.transfer
        address, key = self._registrations.keys(transfer.local, route.device)
        remote_address, remote_key = transfer.remote.keys[route.remote_device]
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

    def _stop(self, group: Group, route: Route) -> list[FinishedPiece[Piece]]:
        """Stop a lane; return its pieces in flight."""
        group.routes.remove(route)
        return route.lane.stop()

    def _take(self, group: Group, route: Route, ended: Sequence[FinishedPiece[Piece]]) -> None:
        """Process ended pieces; repeat pieces of a failed lane if that is allowed."""
        failed = next((one for one in ended if one.status not in (SUCCESS, FLUSHED)), None)
        if failed and route.cause is None:
            route.cause = failed
            route.error = self._error_of(group, failed)
        again: list[Piece] = []
        for one in ended:
            piece, transfer = one.piece, one.piece.transfer
            route.load -= piece.length
            transfer.under_way -= 1
            if one.status == SUCCESS:
                transfer.pieces -= 1
            elif one.status == FLUSHED and _may_repeat(route, piece):
                again.append(piece)
            elif transfer.is_wanted:
                transfer.error = copy(route.error) or error_of(one.status, one.reason)
            self._settle(transfer)
        group.again.extendleft(reversed(again))

    def _error_of(self, group: Group, failed: FinishedPiece[Piece]) -> Exception:
        """Return the error for a failure; a refusal can mean that the process is dying."""
        if is_refusal(failed.status):
            try:
                group.connect()
            except RDMAPeerDied as error:
                self._death = copy(error)
                return copy(error)
            except Exception:
                # The error is reported to the next transfer that needs a lane.
                pass
        return error_of(failed.status, failed.reason)

    def _mourn(self, error: Exception | None) -> None:
        """End all transfers once the other process is known to be dead.

        Otherwise, each lane would retry separately, in some cases for a long time.
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

    def _fail_all(self, group: Group, error: Exception) -> None:
        """End the transfers that wait for lanes that cannot be connected."""
        unserved = [*group.waiting, *(piece.transfer for piece in group.again)]
        group.waiting.clear()
        group.again.clear()
        for transfer in unserved:
            transfer.error = transfer.error or copy(error)
            self._settle(transfer)


def _carries(route: Route, transfer: Transfer) -> bool:
    return any(piece.transfer is transfer for piece in route.lane.under_way)


def _may_repeat(route: Route, piece: Piece) -> bool:
    """Return whether a piece that ended with its lane may be repeated on another lane.

    If the owner refused an earlier piece, this piece was not executed. If the lane was stopped from
    this side, it may have been executed; repeating it is safe unless it is atomic.
    """
    if not piece.transfer.is_wanted or piece.attempts >= ATTEMPTS_MAX:
        return False
    if route.cause is None:
        return not piece.transfer.is_atomic
    return is_refusal(route.cause.status)
