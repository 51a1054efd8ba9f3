"""The files and directories that the kernel knows, by inode number."""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from mesh_fs._gather.host_client import HostClient
    from mesh_fs._gather.messages import FileStatus

__all__ = ["ROOT", "Inode", "InodeTable"]

ROOT = 1
_NUMBERS = (1 << 63) - 1


class Inode:
    """A file under one name on one host, or the root directory, which has no host.

    Attributes:
        number: The inode number.
        client: The client of its host; None for the root.
        path: The path on the host.
        status: The status that the host has reported; None before the first report.
        kernel_status: The status that the kernel was last given.
        requested_s: The time at which the status was requested.
        fresh_until_s: The time until which the status need not be requested again.
        lookups: The number of lookups that the kernel has not yet forgotten.
        epoch: Increases when the content changes.
        untrusted_from_s: The time from which cached content is not trusted, because the file may
            have changed undetected while it was read; None if no such content is cached.
        is_read: Whether the kernel may have cached content of it.
        opened: The number of open handles.
        pending: The pending fetches, by block.
    """

    __slots__ = (
        "client",
        "epoch",
        "fresh_until_s",
        "is_read",
        "kernel_status",
        "lookups",
        "number",
        "opened",
        "path",
        "pending",
        "requested_s",
        "status",
        "untrusted_from_s",
    )

    def __init__(self, number: int, client: HostClient | None, path: bytes) -> None:
        self.number = number
        self.client = client
        self.path = path
        self.status: FileStatus | None = None
        self.kernel_status: FileStatus | None = None
        self.requested_s = 0.0
        self.fresh_until_s = 0.0
        self.lookups = 0
        self.epoch = 0
        self.untrusted_from_s: float | None = None
        self.is_read = False
        self.opened = 0
        self.pending: dict[int, asyncio.Task[dict[int, bytes]]] = {}

    @property
    def is_host(self) -> bool:
        """Whether it is the directory that a host shows."""
        return self.client is not None and not self.path

    def under(self, name: bytes) -> bytes:
        """Return the path of an entry of this directory."""
        return self.path + b"/" + name if self.path else name


class InodeTable:
    """All inodes.

    Args:
        clients: The clients of the hosts.
        is_direct: Whether the root is the directory of the only host.
    """

    def __init__(self, clients: list[HostClient], *, is_direct: bool) -> None:
        self.top = Inode(ROOT, clients[0] if is_direct else None, b"")
        self._by_number = {ROOT: self.top}
        # The current inode of each path. Earlier files may have had the same path.
        self._by_path: dict[tuple[int, bytes], Inode] = {}
        self.hosts: dict[bytes, Inode] = {}
        for client in clients:
            node = (
                self.top if is_direct else self._add(self._number(client, b"", (0, 0)), client, b"")
            )
            self._by_path[client.rank, b""] = node
            self.hosts[client.name] = node

    def __getitem__(self, number: int) -> Inode:
        return self._by_number[number]

    def __iter__(self) -> Iterator[Inode]:
        return iter(list(self._by_number.values()))

    def of(self, client: HostClient, path: bytes, status: FileStatus) -> Inode:
        """Return the inode of a file at a path: the same object as long as the kernel knows it."""
        node = self._by_path.get((client.rank, path))
        if node is not None and node.status is not None and node.status.file == status.file:
            return node
        number = self._number(client, path, status.file)
        known = self._by_number.get(number)
        node = known or self._add(number, client, path)
        self._by_path[client.rank, path] = node
        return node

    def at(self, client: HostClient, path: bytes) -> Inode | None:
        """Return the current inode of a path, if the kernel may know it."""
        return self._by_path.get((client.rank, path))

    def forget(self, number: int, lookups: int) -> Inode | None:
        """Subtract lookups from an inode; return it if it was removed."""
        node = self._by_number.get(number)
        if node is None:
            return None
        node.lookups -= lookups
        if node.lookups > 0 or node is self.top or node.is_host:
            return None
        del self._by_number[number]
        assert node.client is not None, "the top is never forgotten"
        key = node.client.rank, node.path
        if self._by_path.get(key) is node:
            del self._by_path[key]
        return node

    def _add(self, number: int, client: HostClient, path: bytes) -> Inode:
        node = self._by_number[number] = Inode(number, client, path)
        return node

    def _number(self, client: HostClient, path: bytes, file: tuple[int, int]) -> int:
        """Return the same number for the same file, even if the kernel has forgotten it."""
        data = b"%d %d %d %b" % (client.rank, *file, path)
        number = int.from_bytes(blake2b(data, digest_size=8).digest(), "little") & _NUMBERS
        while number <= ROOT or self._is_other(number, client, path, file):
            number = (number + 1) & _NUMBERS
        return number

    def _is_other(
        self, number: int, client: HostClient, path: bytes, file: tuple[int, int]
    ) -> bool:
        node = self._by_number.get(number)
        if node is None:
            return False
        is_same_file = node.status is None or node.status.file == file
        return node.client is not client or node.path != path or not is_same_file
