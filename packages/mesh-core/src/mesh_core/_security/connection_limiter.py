"""Admission control for the listeners of a process: limits on connections, time and memory."""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Admission", "ConnectionLimiter"]


class ConnectionLimiter:
    """Decides which connections of a listener stay open.

    A connection is unauthenticated until its peer has authenticated itself. Unauthenticated
    connections are limited in number and time, and evict each other: the limiter evicts the oldest
    connection of the peer that has the most. They never evict an authenticated connection. The
    limiter opens no socket and starts no thread. Its methods may be called from several threads.

    Args:
        authenticated_max: The maximum number of authenticated connections. If each has a thread,
            this is also the limit on threads.
        unauthenticated_max: The maximum number of unauthenticated connections.
        per_peer_max: The maximum number of unauthenticated connections of one known peer.
        deadline_s: Seconds after which an unauthenticated connection is closed.
        grace_s: Seconds during which a connection is not evicted by another one of the same peer,
            or of another unknown peer. During a flood, a peer that authenticates immediately is
            therefore still served.
        bytes_max: The maximum number of bytes that all connections together may reserve for their
            requests.
        clock: A monotonic clock in seconds.

    Example:
        >>> limiter = ConnectionLimiter(authenticated_max=8, unauthenticated_max=1, grace_s=0.0)
        >>> first = limiter.admit(lambda: print("closed"))
        >>> second = limiter.admit(lambda: None)
        closed
        >>> second.authenticate()
        True
    """

    def __init__(
        self,
        *,
        authenticated_max: int,
        unauthenticated_max: int,
        per_peer_max: int | None = None,
        deadline_s: float = 10.0,
        grace_s: float = 0.005,
        bytes_max: int = 64 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, limit in (
            ("authenticated_max", authenticated_max),
            ("unauthenticated_max", unauthenticated_max),
            ("per_peer_max", 1 if per_peer_max is None else per_peer_max),
        ):
            if limit < 1:
                raise ValueError(f"{name} {limit} admits no connection: pass at least 1")
        self._authenticated_max = authenticated_max
        self._unauthenticated_max = unauthenticated_max
        self._per_peer_max = per_peer_max
        self._deadline_s = deadline_s
        self._grace_s = grace_s
        self._bytes_max = bytes_max
        self._clock = clock
        self._lock = threading.Lock()
        # Both are in order of admission, which is also the order of deadlines because all
        # connections have the same time.
        self._unauthenticated: dict[Admission, None] = {}
        self._by_peer: dict[Hashable, dict[Admission, None]] = {}
        self._authenticated_count = 0
        self._byte_count = 0

    @property
    def authenticated_count(self) -> int:
        """The number of open authenticated connections."""
        return self._authenticated_count

    @property
    def unauthenticated_count(self) -> int:
        """The number of open unauthenticated connections."""
        return len(self._unauthenticated)

    @property
    def byte_count(self) -> int:
        """The number of reserved bytes."""
        return self._byte_count

    def admit(self, close: Callable[[], object], peer: Hashable = None) -> Admission | None:
        """Admit a new connection, and evict another one if the limit is reached.

        Args:
            close: Closes the connection. It is called at most once, by `admit`, `evict` or
                `expire`, and never after `authenticate` or `release`.
            peer: The peer of the connection, such as a user id or an address; None if unknown.

        Returns:
            The admission; None if the connection to evict is still within its grace period. In that
            case accept no connection for `grace_s`, and leave this one in the backlog of the
            listener.
        """
        with self._lock:
            evicted = None
            same = self._by_peer.get(peer, {})
            if peer is not None and len(same) == self._per_peer_max:
                evicted = next(iter(same))
            elif len(self._unauthenticated) >= self._unauthenticated_max:
                evicted = self._evictable()
                is_young = self._clock() < evicted.admitted_at + self._grace_s
                # The grace period applies between connections of one peer, and between unknown
                # peers.
                if is_young and evicted.peer == peer:
                    return None
            if evicted is not None:
                self._forget(evicted)
            admission = Admission(self, close, peer, self._clock())
            self._unauthenticated[admission] = None
            self._by_peer.setdefault(peer, {})[admission] = None
        if evicted is not None:
            evicted.close()
        return admission

    def evict(self) -> bool:
        """Close one unauthenticated connection, for example when descriptors run out.

        Returns:
            Whether a connection was closed.
        """
        with self._lock:
            if not self._unauthenticated:
                return False
            evicted = self._evictable()
            self._forget(evicted)
        evicted.close()
        return True

    def expire(self) -> float | None:
        """Close the connections whose deadline has passed.

        Returns:
            Seconds until the next deadline; None if no connection has one.
        """
        while True:
            with self._lock:
                oldest = next(iter(self._unauthenticated), None)
                if oldest is None:
                    return None
                left_s = oldest.admitted_at + self._deadline_s - self._clock()
                if left_s > 0:
                    return left_s
                self._forget(oldest)
            oldest.close()

    def _evictable(self) -> Admission:
        most = max(self._by_peer.values(), key=len)
        return next(iter(most))

    def _forget(self, admission: Admission) -> bool:
        """Remove an admission from the unauthenticated ones; return whether it was one of them."""
        if admission not in self._unauthenticated:
            return False
        del self._unauthenticated[admission]
        same = self._by_peer[admission.peer]
        del same[admission]
        if not same:
            del self._by_peer[admission.peer]
        return True

    def _authenticate(self, admission: Admission) -> bool:
        with self._lock:
            if admission.is_authenticated:
                return True
            if self._authenticated_count >= self._authenticated_max:
                return False
            if not self._forget(admission):
                return False
            self._authenticated_count += 1
            admission.is_authenticated = True
            return True

    def _reserve(self, admission: Admission, nbytes: int) -> bool:
        with self._lock:
            total = self._byte_count - admission.byte_count + nbytes
            if total > self._bytes_max and nbytes > admission.byte_count:
                return False
            self._byte_count, admission.byte_count = total, nbytes
            return True

    def _release(self, admission: Admission) -> None:
        with self._lock:
            self._forget(admission)
            self._authenticated_count -= admission.is_authenticated
            admission.is_authenticated = False
            self._byte_count -= admission.byte_count
            admission.byte_count = 0


class Admission:
    """A connection that a `ConnectionLimiter` counts until it is released.

    Attributes:
        peer: The peer of the connection; None if unknown.
        admitted_at: The time of admission, by the clock of the limiter.
        is_authenticated: Whether its peer has authenticated itself.
        byte_count: The number of bytes that it has reserved.
    """

    def __init__(
        self,
        limiter: ConnectionLimiter,
        close: Callable[[], object],
        peer: Hashable,
        admitted_at: float,
    ) -> None:
        self._limiter = limiter
        self._close = close
        self.peer: Hashable = peer
        self.admitted_at: float = admitted_at
        self.is_authenticated: bool = False
        self.byte_count: int = 0

    def authenticate(self) -> bool:
        """Record that the peer has authenticated itself; the connection is no longer evicted.

        Returns:
            False if `authenticated_max` is reached or the connection was evicted; close it in this
            case.
        """
        return self._limiter._authenticate(self)

    def reserve(self, nbytes: int) -> bool:
        """Set the number of bytes that the request of the connection may take; 0 releases them.

        Returns:
            False if the limit of all connections together is exceeded; refuse the request in this
            case.
        """
        return self._limiter._reserve(self, nbytes)

    def release(self) -> None:
        """Record that the connection is closed; calling it twice has no further effect."""
        self._limiter._release(self)

    def close(self) -> None:
        """Close the connection because the limiter evicts it or its deadline has passed."""
        self._close()
