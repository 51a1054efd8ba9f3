"""Reachability checks of workers from this machine."""

from __future__ import annotations

import socket

from mesh_jobs import Phase
from mesh_jobs._diagnostics.reachability import check_reachability
from mesh_jobs.spi import THIS_HOST, HostReport


def test_each_worker_is_reported_as_reachable_or_with_a_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        addresses = [
            f"tcp://127.0.0.1:{listener.getsockname()[1]}",
            f"tcp://127.0.0.1:{closed.getsockname()[1]}",
            "tcp://no-such-host.invalid:1",
            THIS_HOST,
        ]
        hosts = [HostReport("m", at, Phase.RUNNING, one) for at, one in enumerate(addresses)]
        hosts.append(HostReport("m", 4, Phase.PENDING, None, "Priority"))
        found = check_reachability(hosts)
    assert [reach.problem for reach in found] == [
        "",
        f"nothing listens at {addresses[1]}",
        "the name no-such-host.invalid cannot be resolved here",
        "",
        "it is pending: Priority",
    ]
    assert [reach.connect_s is None for reach in found] == [False, True, True, False, True]
