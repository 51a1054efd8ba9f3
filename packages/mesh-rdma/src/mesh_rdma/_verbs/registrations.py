"""Memory that devices may reach: registered with them as long as somebody wants it to be."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from mesh_rdma._verbs.binding import REMOTE, Access, Device
from mesh_rdma._verbs.binding import Region as DeviceRegion
from mesh_rdma._verbs.dmabuf import DmaBuf, dmabuf_of

#: Of registrations that begin before a range, so many are looked at for one that holds it. A range
#: that is missed by that is registered once more, for one transfer.
LOOKED_AT_MAX = 16


@dataclass(eq=False)
class Entry:
    """A range of memory, and what it is called by each device that it is registered with."""

    address: int
    length: int
    access: Access
    #: Its address, and how many were registered before it.
    name: tuple[int, int] = (0, 0)
    #: Transfers under way.
    users: int = 0
    #: Whether it goes with the last of them.
    is_passing: bool = False
    dmabuf: DmaBuf | None = None
    regions: dict[int, DeviceRegion] = field(default_factory=dict)

    def holds(self, address: int, length: int, access: Access) -> bool:
        """Whether a range lies within it, and that may be done to it."""
        ends = address + length <= self.address + self.length
        return self.address <= address and ends and access in self.access

    def close(self) -> None:
        """Takes the memory from all devices."""
        for region in self.regions.values():
            region.close()
        self.regions.clear()
        if self.dmabuf:
            self.dmabuf.close()


class Registrations:
    """The registrations of one process.

    Transfers use those that were asked for. Memory that is in none of them is registered for as
    long as a transfer takes: nobody says when it goes, so nothing of it is kept.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices
        self._lock = threading.Lock()
        self._entries: dict[tuple[int, int], Entry] = {}
        self._by_address: list[tuple[int, int]] = []
        self._count = 0
        self._passing: dict[tuple[int, int, Access], Entry] = {}

    def add(self, address: int, length: int, is_writable: bool) -> Entry:
        """Registers memory with all devices, under keys that it shares with nothing else.

        Raises:
            OSError: A device cannot be given that memory.
        """
        access = Access.LOCAL_WRITE | REMOTE if is_writable else Access.REMOTE_READ
        entry = Entry(address, length, access)
        try:
            for place in range(len(self._devices)):
                self._register(entry, place)
        except OSError:
            entry.close()
            raise
        with self._lock:
            self._count += 1
            entry.name = (address, self._count)
            self._entries[entry.name] = entry
            insort(self._by_address, entry.name)
        return entry

    def remove(self, entry: Entry) -> None:
        """Takes memory from all devices: when this returns, nobody reaches it any more."""
        with self._lock:
            if self._entries.pop(entry.name, None):
                self._by_address.remove(entry.name)
            entry.close()

    def hold(self, address: int, length: int, access: Access) -> Entry:
        """Returns an entry that a range lies in, which is there until `release`."""
        with self._lock:
            entry = self._find(address, length, access)
            if entry is None:
                key = (address, length, access)
                fresh = Entry(address, length, access, is_passing=True)
                entry = self._passing.setdefault(key, fresh)
            entry.users += 1
            return entry

    def release(self, entry: Entry) -> None:
        """Ends one use of an entry."""
        with self._lock:
            entry.users -= 1
            assert entry.users >= 0
            if entry.users == 0 and entry.is_passing:
                del self._passing[entry.address, entry.length, entry.access]
                entry.close()

    def keys(self, entry: Entry, place: int) -> tuple[int, int]:
        """Returns what a device calls the first byte of an entry, and the key to it.

        Raises:
            OSError: The memory cannot be registered with that device.
        """
        with self._lock:
            region = entry.regions.get(place)
            if region is None:
                if not entry.is_passing:
                    raise OSError("the memory is no longer registered")
                region = self._register(entry, place)
            return region.address, region.local_key

    def close(self) -> None:
        """Takes all memory from all devices."""
        with self._lock:
            for entry in (*self._entries.values(), *self._passing.values()):
                entry.close()
            self._entries.clear()
            self._by_address.clear()

    def _find(self, address: int, length: int, access: Access) -> Entry | None:
        """Returns an entry that a range lies in."""
        place = bisect_right(self._by_address, (address, self._count))
        for name in reversed(self._by_address[max(0, place - LOOKED_AT_MAX) : place]):
            if self._entries[name].holds(address, length, access):
                return self._entries[name]
        return None

    def _register(self, entry: Entry, place: int) -> DeviceRegion:
        device, range_ = self._devices[place], (entry.address, entry.length)
        if not entry.regions:
            entry.dmabuf = dmabuf_of(*range_)
        if entry.dmabuf:
            source = entry.dmabuf.descriptor, entry.dmabuf.offset
            region = device.register_dmabuf(*source, *range_, entry.access)
        else:
            region = device.register(*range_, entry.access)
        entry.regions[place] = region
        return region
