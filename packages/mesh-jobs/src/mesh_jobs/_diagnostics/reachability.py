"""Reachability of the workers of a job from this machine, checked without attaching to them."""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesh_jobs._backend.report import THIS_HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_jobs._backend.report import HostReport

__all__ = ["Reachability", "check_reachability"]

_CONNECT_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Reachability:
    """The result of connecting to a worker."""

    host: HostReport
    connect_s: float | None = None
    """The time to connect, in seconds; None if that failed."""
    problem: str = ""
    advice: str = ""


def check_reachability(hosts: Sequence[HostReport]) -> list[Reachability]:
    """Connect to the workers of all hosts concurrently, and close the connections."""
    found: list[Reachability | None] = [None] * len(hosts)

    def one(at: int) -> None:
        found[at] = _check(hosts[at])

    callers = [threading.Thread(target=one, args=(at,), daemon=True) for at in range(len(hosts))]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return [reach for reach in found if reach is not None]


def _check(host: HostReport) -> Reachability:
    if host.address == THIS_HOST:
        return Reachability(host, 0.0)
    if not host.is_up or host.address is None:
        why = f"it is {host.state}" + (f": {host.reason}" if host.reason else "")
        return Reachability(host, None, why, "wait for it, or see mesh logs")
    name, _, port = host.address.partition("://")[2].rpartition(":")
    began = time.perf_counter()
    try:
        socket.create_connection((name.strip("[]"), int(port)), _CONNECT_LIMIT_S).close()
    except socket.gaierror:
        advice = "add it to the DNS or to /etc/hosts here, or use a gateway"
        return Reachability(host, None, f"the name {name} cannot be resolved here", advice)
    except ConnectionRefusedError:
        why = f"nothing listens at {host.address}"
        return Reachability(host, None, why, "its worker has exited: see mesh logs")
    except TimeoutError:
        why = f"{host.address} does not respond in {_CONNECT_LIMIT_S:g} s"
        return Reachability(host, None, why, "open its port in firewalls, or use a gateway")
    except OSError as error:
        why = f"{host.address} cannot be reached: {error.strerror or error}"
        return Reachability(host, None, why, "check the routes from here, or use a gateway")
    return Reachability(host, time.perf_counter() - began)
