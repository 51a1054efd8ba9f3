"""Registrations of memory with devices, for as long as they are needed."""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from mesh_rdma._verbs.binding import REMOTE, Access, Device
from mesh_rdma._verbs.binding import Region as DeviceRegion
from mesh_rdma._verbs.dmabuf import DmaBuf, dmabuf_of

#: The number of preceding registrations that are searched for one that contains a range. If none is
#: found, the range is registered again for one transfer.
SEARCH_LEN_MAX = 16


@dataclass(eq=False)
class Entry:
    """A range of memory, and its registrations with devices."""

    address: int
    length: int
    access: Access
    #: The address, and a sequence number.
    name: tuple[int, int] = (0, 0)
    #: The number of transfers in flight.
    users: int = 0
    #: Whether the entry is removed with its last transfer.
    is_temporary: bool = False
    dmabuf: DmaBuf | None = None
    regions: dict[int, DeviceRegion] = field(default_factory=dict)

    def contains(self, address: int, length: int, access: Access) -> bool:
        """Return whether a range is within this one and permits the access."""
        ends = address + length <= self.address + self.length
        return self.address <= address and ends and access in self.access

    def close(self) -> None:
        """Deregister the memory from all devices."""
        for region in self.regions.values():
            region.close()
        self.regions.clear()
        if self.dmabuf:
            self.dmabuf.close()


class Registrations:
    """The registrations of one process.

    Transfers use explicit registrations. Memory outside of them is registered for the duration of a
    transfer only; it is not cached, because there is no notification when the memory is freed.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._devices = devices
        self._lock = threading.Lock()
        self._entries: dict[tuple[int, int], Entry] = {}
        self._by_address: list[tuple[int, int]] = []
        self._count = 0
        self._temporary: dict[tuple[int, int, Access], Entry] = {}

    def add(self, address: int, length: int, is_writable: bool) -> Entry:
        """Register memory with all devices, with keys that are not shared.

        Raises:
            OSError: A device cannot register the memory.
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
        """Deregister memory from all devices; afterwards, no process can access it."""
        with self._lock:
            if self._entries.pop(entry.name, None):
                self._by_address.remove(entry.name)
            entry.close()

    def acquire(self, address: int, length: int, access: Access) -> Entry:
        """Return an entry that contains a range; it remains until `release`."""
        with self._lock:
            entry = self._find(address, length, access)
            if entry is None:
                key = (address, length, access)
                fresh = Entry(address, length, access, is_temporary=True)
                entry = self._temporary.setdefault(key, fresh)
            entry.users += 1
            return entry

    def release(self, entry: Entry) -> None:
        """End one use of an entry."""
        with self._lock:
            entry.users -= 1
            assert entry.users >= 0
            if entry.users == 0 and entry.is_temporary:
                del self._temporary[entry.address, entry.length, entry.access]
                entry.close()

    def keys(self, entry: Entry, place: int) -> tuple[int, int]:
        """Return the device address of the first byte of an entry, and its local key.

        Raises:
            OSError: The memory cannot be registered with the device.
        """
        with self._lock:
            region = entry.regions.get(place)
            if region is None:
                if not entry.is_temporary:
                    raise OSError("the memory is no longer registered")
                region = self._register(entry, place)
            return region.address, region.local_key

    def close(self) -> None:
        """Deregister all memory from all devices."""
        with self._lock:
            for entry in (*self._entries.values(), *self._temporary.values()):
                entry.close()
            self._entries.clear()
            self._by_address.clear()

    def _find(self, address: int, length: int, access: Access) -> Entry | None:
        """Return an entry that contains a range."""
        place = bisect_right(self._by_address, (address, self._count))
        for name in reversed(self._by_address[max(0, place - SEARCH_LEN_MAX) : place]):
            if self._entries[name].contains(address, length, access):
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
