"""The findings of the doctor, from the measurements of hosts."""

from __future__ import annotations

import platform

import pytest

from mesh_jobs._diagnostics.diagnosis import Thresholds, _findings, rounds
from mesh_jobs._diagnostics.probe import HostProbeResult, PairProbeResult, core_version


@pytest.mark.parametrize("count", [1, 2, 3, 8, 9])
def test_each_pair_is_probed_once_and_each_host_once_per_round(count: int) -> None:
    met = []
    for meetings in rounds(count):
        everybody = [one for pair in meetings for one in pair]
        assert len(everybody) == len(set(everybody))
        met += meetings
    assert sorted(met) == [(a, b) for a in range(count) for b in range(count) if a != b]


def host(name: str, python: str = platform.python_version()) -> HostProbeResult:
    return HostProbeResult(name, python, core_version(), 8, 1)


FINE = PairProbeResult(("10.0.0.2",), 0.0002, 1e9)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (FINE, []),
        (
            PairProbeResult((), 0.0002, 1e9),
            ["host 1 to host 2: the name c cannot be resolved there: add it to the DNS or to"],
        ),
        (
            PairProbeResult(("10.0.0.2",), 0.03, 1e9),
            ["host 1 to host 2: a call takes 30.0 ms: check the load"],
        ),
        (
            PairProbeResult(("10.0.0.2",), 0.0002, 1e8),
            ["host 1 to host 2: 100 MB/s, but 1000 MB/s are typical of the mesh: check"],
        ),
        (
            PairProbeResult(("10.0.0.2",), problem="no response in 20 s"),
            ["host 1 to host 2: cannot call it: no response in 20 s: open the port of its worker"],
        ),
    ],
)
def test_a_pair_that_differs_from_the_others_is_reported(
    changed: PairProbeResult, told: list[str]
) -> None:
    hosts = [host("a"), host("b"), host("c")]
    pairs = {(a, b): FINE for a in range(3) for b in range(3) if a != b}
    pairs[1, 2] = changed
    check(hosts, [0.0, 0.0, 0.0], pairs, told)


def test_a_clock_that_is_ahead_is_reported_once_per_other_host() -> None:
    told = [
        "host 0 to host 1: the clock of b is 90.0 s ahead: synchronize the clocks of a and b",
        "host 2 to host 1: the clock of b is 90.5 s ahead: synchronize the clocks of c and b",
    ]
    pairs = {(a, b): FINE for a in range(3) for b in range(3) if a != b}
    check([host("a"), host("b"), host("c")], [0.0, 90.0, -0.5], pairs, told)


def test_a_different_python_version_is_reported() -> None:
    here = platform.python_version()
    told = [f"host 1: b has Python 3.1.4, but this machine has {here}: install Python {here}"]
    check([host("a"), host("b", "3.1.4")], [0.0, 0.0], {(0, 1): FINE, (1, 0): FINE}, told)


def check(
    hosts: list[HostProbeResult],
    ahead: list[float],
    pairs: dict[tuple[int, int], PairProbeResult],
    told: list[str],
) -> None:
    found = [
        f"{one.where}: {one.what}: {one.advice}"
        for one in _findings(hosts, ahead, pairs, Thresholds())
    ]
    assert len(found) == len(told)
    assert all(one.startswith(text) for one, text in zip(found, told, strict=True)), found
