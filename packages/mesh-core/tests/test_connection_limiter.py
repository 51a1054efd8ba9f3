"""The connection limiter enforces its limits on all peers."""

from __future__ import annotations

import pytest

from mesh_core.spi import Admission, ConnectionLimiter


class Clock:
    """A clock that the test controls."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Listener:
    """A limiter, and the connections that it has closed."""

    def __init__(self, per_peer_max: int | None = None) -> None:
        self.clock = Clock()
        self.closed: list[str] = []
        self.limiter = ConnectionLimiter(
            authenticated_max=2,
            unauthenticated_max=3,
            per_peer_max=per_peer_max,
            deadline_s=10.0,
            grace_s=1.0,
            bytes_max=100,
            clock=self.clock,
        )

    def try_open(self, name: str, peer: str | None = None) -> Admission | None:
        return self.limiter.admit(lambda: self.closed.append(name), peer)

    def open(self, name: str, peer: str | None = None) -> Admission:
        admission = self.try_open(name, peer)
        assert admission is not None
        return admission


def test_a_full_limiter_evicts_the_oldest_unauthenticated_connection() -> None:
    listener = Listener()
    for name in ("a", "b", "c"):
        listener.open(name)
    listener.clock.now += 1
    listener.open("d")
    assert listener.closed == ["a"]
    assert listener.limiter.unauthenticated_count == 3


def test_a_new_connection_is_not_evicted_within_its_grace() -> None:
    listener = Listener()
    for name in ("a", "b", "c"):
        listener.open(name)
    listener.clock.now += 0.5
    assert listener.try_open("d") is None
    assert listener.closed == []
    assert listener.limiter.unauthenticated_count == 3


def test_an_authenticated_connection_is_never_evicted() -> None:
    listener = Listener()
    assert listener.open("ours").authenticate()
    for number in range(20):
        listener.clock.now += 20
        listener.limiter.expire()
        for _ in range(3):
            listener.open(f"theirs {number}")
    assert "ours" not in listener.closed
    assert listener.limiter.authenticated_count == 1


def test_authenticated_connections_have_a_limit_too() -> None:
    listener = Listener()
    first, second, third = (listener.open(name) for name in ("a", "b", "c"))
    assert [first.authenticate(), second.authenticate(), third.authenticate()] == [
        True,
        True,
        False,
    ]
    first.release()
    assert third.authenticate()


def test_the_peer_with_the_most_connections_loses_one() -> None:
    listener = Listener()
    listener.open("one", peer="x")
    listener.open("two", peer="y")
    listener.open("three", peer="y")
    listener.clock.now += 1
    listener.open("four", peer="z")
    assert listener.closed == ["two"]


def test_grace_does_not_protect_the_peer_with_the_most_connections_from_others() -> None:
    listener = Listener()
    for name in ("one", "two", "three"):
        listener.open(name, peer="x")
    listener.open("four", peer="y")
    assert listener.closed == ["one"]


def test_a_peer_at_its_limit_evicts_its_own_connection_at_once() -> None:
    listener = Listener(per_peer_max=1)
    listener.open("one", peer="x")
    listener.open("two", peer="y")
    listener.open("three", peer="x")
    assert listener.closed == ["one"]


def test_connections_without_a_known_peer_have_no_per_peer_limit() -> None:
    listener = Listener(per_peer_max=1)
    listener.open("one")
    listener.open("two")
    assert listener.closed == []


def test_unauthenticated_connections_are_closed_at_their_deadline() -> None:
    listener = Listener()
    assert listener.limiter.expire() is None
    listener.open("a")
    listener.clock.now += 4
    kept = listener.open("b")
    listener.open("c").authenticate()
    assert listener.limiter.expire() == 6.0
    listener.clock.now += 6
    assert listener.limiter.expire() == 4.0
    assert listener.closed == ["a"]
    kept.release()
    assert listener.limiter.expire() is None


def test_an_evicted_connection_cannot_authenticate() -> None:
    listener = Listener()
    late = listener.open("a")
    listener.clock.now += 10
    listener.limiter.expire()
    assert not late.authenticate()
    late.release()
    assert listener.limiter.authenticated_count == 0


def test_one_connection_is_evicted_when_descriptors_run_out() -> None:
    listener = Listener()
    assert not listener.limiter.evict()
    listener.open("a").authenticate()
    assert not listener.limiter.evict()
    listener.open("b")
    assert listener.limiter.evict()
    assert listener.closed == ["b"]


def test_requests_of_all_connections_share_one_byte_limit() -> None:
    listener = Listener()
    first, second = listener.open("a"), listener.open("b")
    assert first.reserve(60)
    assert not second.reserve(60)
    assert second.reserve(40)
    assert first.reserve(0)
    assert second.reserve(100)
    second.release()
    assert listener.limiter.byte_count == 0


def test_releasing_a_connection_is_idempotent() -> None:
    listener = Listener()
    admission = listener.open("a")
    assert admission.authenticate()
    admission.release()
    admission.release()
    assert listener.limiter.authenticated_count == 0


@pytest.mark.parametrize("limits", [(0, 1, None), (1, 0, None), (1, 1, 0)])
def test_a_limit_below_one_is_refused(limits: tuple[int, int, int | None]) -> None:
    authenticated_max, unauthenticated_max, per_peer_max = limits
    with pytest.raises(ValueError, match="pass at least 1"):
        ConnectionLimiter(
            authenticated_max=authenticated_max,
            unauthenticated_max=unauthenticated_max,
            per_peer_max=per_peer_max,
        )
