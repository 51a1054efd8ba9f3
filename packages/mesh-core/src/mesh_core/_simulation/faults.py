"""Faults of a simulated cluster, which a seed selects."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SimulatedFaults"]


class SimulatedFaults(NamedTuple):
    """The maximum number of faults of each kind; a seed draws how many occur, and when.

    Half of the seeds leave out a kind, because a mixture of all kinds finds fewer bugs.
    """

    kills: int = 1
    """Processes that are killed; never the program or the agent of a host."""
    host_kills: int = 0
    """Hosts that are lost with all their processes; never the host of the program."""
    stalls: int = 1
    """Processes that stop for up to 3 s."""
    breaks: int = 2
    """Connections that break; Mesh connects again."""
    partitions: int = 1
    """Times at which some hosts cannot reach the others."""
    partition_s: float = 2.0
    """The longest duration of a partition, in seconds. One that is longer than three heartbeats
    makes the program lose these hosts."""
    slow_hosts: int = 1
    """Hosts that run 2 to 50 times slower than the others."""
    full_mailboxes: bool = True
    """Whether mailboxes may hold as few as 1 message of each sender."""
    within_s: float = 10.0
    """The virtual time until the last fault, in seconds. Early faults are as likely as late ones:
    the exponent of the time is uniform."""
