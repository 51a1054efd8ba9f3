"""Emulated hosts on one machine for tests: see `World`."""

from tests.hosts.world.enclosure import EnclosureGone
from tests.hosts.world.fault import Fault
from tests.hosts.world.faults import Faults
from tests.hosts.world.host import Host, HostOff
from tests.hosts.world.process import HostProcess
from tests.hosts.world.traffic import Traffic
from tests.hosts.world.world import World

__all__ = [
    "EnclosureGone",
    "Fault",
    "Faults",
    "Host",
    "HostOff",
    "HostProcess",
    "Traffic",
    "World",
]
