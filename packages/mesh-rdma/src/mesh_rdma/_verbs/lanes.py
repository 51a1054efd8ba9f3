"""The lanes to one other process: spreads transfers over lanes, and mends lanes that fail."""

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

#: No work request is for more than this, whatever a port would take.
PIECE_MAX = 1 << 30

#: Where there are several lanes, pieces are no smaller than this, ...
STRIPE_MIN = 1 << 20

#: ... and each lane has about so many of a transfer: one that is faster takes more.
STRIPES_PER_LANE = 4

#: How often a piece is tried that was thrown out together with one that failed.
ATTEMPTS_MAX = 3


#: Transfers that wait for room on a lane; who begins more waits too.
WAITING_LEN_MAX = 1024

#: How long to look again and again before waiting to be told: small transfers take less.
SPIN_S = 0.00005

#: How long to wait at once: a lane that others have connected meanwhile is not waited for.
PAUSE_S = 0.01

#: The same where a binding cannot tell of completions.
UNTOLD_S = 0.0002


class Group:
    """Lanes of which each will do, and what waits for them."""

    def __init__(self, connector: Connector, numbers: Sequence[int]) -> None:
        #: Transfers that are not cut up to their end yet, and pieces that are to be done again.
        self.waiting: deque[Transfer] = deque()
        self.again: deque[Piece] = deque()
        self.routes: list[Route] = []
        self._connector = connector
        self._numbers = list(numbers)
        self._reached = self._numbers

    def connect(self) -> None:
        """Connects lanes that are not: at first all of them, later those that have failed.

        Raises:
            RDMAPeerDied: There is no other end any more.
            Exception: None is connected, and none can be.
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
            # The others are tried again when none of these is left.
            self._reached = [route.number for route in self.routes]

    @property
    def piece_len_max(self) -> int:
        """The most that every lane takes at once."""
        return min(PIECE_MAX, *(route.message_max for route in self.routes))

    def next_piece(self) -> Piece | None:
        """Takes what is to be done next."""
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
    """Carries transfers out, several at a time, asked for by any thread.

    Whatever happens to one of them leaves the others alone: those that go down with a lane are
    carried out on the next one, unless they might be done twice that way.
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
        """Connects the lanes; without it that happens with the first transfer.

        Raises:
            RDMATransportError: There are none that can be.
            Exception: The other process cannot be asked.
        """
        with self._lock:
            self._bulk.connect()

    def start(self, transfer: Transfer) -> None:
        """Begins a transfer; waits where too many others do already.

        Raises:
            Exception: The lanes were ended.
        """
        group = self._atomics if transfer.is_atomic else self._bulk
        while True:
            with self._lock:
                if self._end:
                    self._registrations.release(transfer.local)
                    # One that is raised keeps hold of all that its callers have in hand.
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
        """Returns transfers that have ended, and keeps the others going; waits for the first."""
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
        """Ends a transfer: when this returns no byte of it lands any more, here or there."""
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
                # What is in the network for the other end of a lane is thrown away there once that
                # is made anew. If it cannot be, the other process is no more to be reached.
                with suppress(Exception):
                    group.connect()
            self._push(group)

    def end(self, error: Exception) -> None:
        """Ends all transfers with an error; none can be begun any more."""
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
        """Ends all transfers, and tells the other process that none will come."""
        with self._lock:
            was_connected = bool(self._bulk.routes or self._atomics.routes)
            self.end(error)
        if was_connected:
            with suppress(Exception):
                self._connector.leave()

    def _progress(self) -> None:
        """Notes what has ended, and hands over what there is room for now."""
        for group in (self._bulk, self._atomics):
            for route in list(group.routes):
                ended = route.lane.poll()
                if route.lane.is_broken:
                    ended += self._stop(group, route)
                self._take(group, route, ended)
            self._push(group)
        self._mourn(self._death)

    def _wait(self, seconds: float) -> None:
        """Waits until something may have ended; others may poll, and connect lanes, meanwhile."""
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
        """Hands over to lanes what waits, as far as they have room."""
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
        """Spreads what waits over lanes that have room, each piece to the one with least to do."""
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
        """Ends a lane, and returns what was under way on it."""
        group.routes.remove(route)
        return route.lane.stop()

    def _take(self, group: Group, route: Route, ended: Sequence[FinishedPiece[Piece]]) -> None:
        """Notes what became of pieces; what went down with a lane is done again if it may be."""
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
        """Returns what a failure means: a process that dies takes its memory back first."""
        if is_refusal(failed.status):
            try:
                group.connect()
            except RDMAPeerDied as error:
                self._death = copy(error)
                return copy(error)
            except Exception:
                # Who needs a lane next is told.
                pass
        return error_of(failed.status, failed.reason)

    def _mourn(self, error: Exception | None) -> None:
        """Ends everything once the other process is known to have died.

        Adapters would go on asking it, each lane for itself and some for long.
        """
        if isinstance(error, RDMAPeerDied) and not self._end:
            self.end(error)

    def _settle(self, transfer: Transfer) -> None:
        """Hands a transfer back once nothing of it is under way any more."""
        if transfer.is_over and transfer in self._transfers:
            self._transfers.remove(transfer)
            self._registrations.release(transfer.local)
            if not transfer.is_aborted:
                self._over.append(transfer)

    def _fail_all(self, group: Group, error: Exception) -> None:
        """Ends what waits for lanes that cannot be had."""
        unserved = [*group.waiting, *(piece.transfer for piece in group.again)]
        group.waiting.clear()
        group.again.clear()
        for transfer in unserved:
            transfer.error = transfer.error or copy(error)
            self._settle(transfer)


def _carries(route: Route, transfer: Transfer) -> bool:
    return any(piece.transfer is transfer for piece in route.lane.under_way)


def _may_repeat(route: Route, piece: Piece) -> bool:
    """Whether a piece that went down with its lane may be done on another.

    If the other end has refused a piece before it, it was not done there. If its lane was ended
    from here, it may have been: that does no harm, unless it is atomic.
    """
    if not piece.transfer.is_wanted or piece.attempts >= ATTEMPTS_MAX:
        return False
    if route.cause is None:
        return not piece.transfer.is_atomic
    return is_refusal(route.cause.status)
