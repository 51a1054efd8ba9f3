"""The presumed hosts are queried at once; their result counts if they are confirmed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mesh_telemetry._hosts.host_handle import HostHandle
from mesh_telemetry._query.host_list import HostList

ROWS: Any = object()
ONE, OTHER = HostHandle(0, "a", ROWS, None), HostHandle(1, "b", ROWS, None)
LOST = HostHandle(0, "a", None, "it has ended")


class Coordinator:
    """A fake `Coordinator` that replies, when it is waited for, with the current value."""

    def __init__(self, *now: HostHandle) -> None:
        self.now = list(now)

    @property
    def hosts(self) -> Coordinator:
        return self

    def call_one(self) -> Coordinator:
        return self

    def get(self, timeout: float) -> list[HostHandle]:
        assert timeout >= 0
        return list(self.now)


class Asked:
    """Records the queried hosts, and whether the query was cancelled."""

    def __init__(self, error: Exception | None = None) -> None:
        self.hosts: list[list[HostHandle]] = []
        self.error = error

    def __call__(
        self, hosts: Sequence[HostHandle], asked: Callable[[], None], timeout_s: float
    ) -> list[HostHandle]:
        assert 0 < timeout_s <= 10
        self.hosts.append(list(hosts))
        asked()
        if self.error is not None:
            raise self.error
        return list(hosts)


def test_a_single_host_is_queried_once() -> None:
    coordinator: Any = Coordinator(ONE)
    hosts = HostList(coordinator)
    for _ in range(3):
        ask = Asked()
        assert hosts.with_hosts(ask, 10.0) == [ONE]
        assert ask.hosts == [[ONE]]


@pytest.mark.parametrize("now", [[OTHER], [ONE, OTHER], [LOST]])
def test_the_actual_hosts_are_queried_if_they_differ_from_the_presumed_ones(
    now: list[HostHandle],
) -> None:
    coordinator: Any = Coordinator(ONE)
    hosts = HostList(coordinator)
    hosts.with_hosts(Asked(), 10.0)
    coordinator.now = now
    ask = Asked()
    assert hosts.with_hosts(ask, 10.0) == now
    assert ask.hosts == [[ONE], now]
    again = Asked()
    assert hosts.with_hosts(again, 10.0) == now
    assert again.hosts == [now]


def test_an_error_of_the_confirmed_hosts_is_raised() -> None:
    coordinator: Any = Coordinator(ONE)
    hosts = HostList(coordinator)
    hosts.with_hosts(Asked(), 10.0)
    ask = Asked(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        hosts.with_hosts(ask, 10.0)
    assert ask.hosts == [[ONE]]
