"""Files and directories that the kernel knows, by the numbers that it knows them by."""

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
    """One file by one name on one host, or the top, which is on none.

    Attributes:
        number: What the kernel knows it by.
        client: The client of its host; None for the top.
        path: Where it is there.
        status: The status that the host has reported; None before the first report.
        kernel_status: The status that the kernel was last given.
        asked_s: When it was asked that.
        fresh_until_s: Until when that need not be asked again.
        lookups: How often the kernel was told of it.
        epoch: Grows when its content is not what it was.
        doubted_s: From when on content is not trusted that was read while it may have changed
            unnoticed; None if there is no such content.
        is_read: Whether the kernel may have content of it.
        opened: How often it is open.
        coming: Which blocks are under way.
    """

    __slots__ = (
        "asked_s",
        "client",
        "coming",
        "doubted_s",
        "epoch",
        "fresh_until_s",
        "is_read",
        "kernel_status",
        "lookups",
        "number",
        "opened",
        "path",
        "status",
    )

    def __init__(self, number: int, client: HostClient | None, path: bytes) -> None:
        self.number = number
        self.client = client
        self.path = path
        self.status: FileStatus | None = None
        self.kernel_status: FileStatus | None = None
        self.asked_s = 0.0
        self.fresh_until_s = 0.0
        self.lookups = 0
        self.epoch = 0
        self.doubted_s: float | None = None
        self.is_read = False
        self.opened = 0
        self.coming: dict[int, asyncio.Task[dict[int, bytes]]] = {}

    @property
    def is_host(self) -> bool:
        """Whether it is all that a host shows."""
        return self.client is not None and not self.path

    def under(self, name: bytes) -> bytes:
        """Gives the path of something in it."""
        return self.path + b"/" + name if self.path else name


class InodeTable:
    """All of them.

    Args:
        clients: The clients of the hosts.
        is_direct: Whether the top is the directory of the only host itself.
    """

    def __init__(self, clients: list[HostClient], *, is_direct: bool) -> None:
        self.top = Inode(ROOT, clients[0] if is_direct else None, b"")
        self._by_number = {ROOT: self.top}
        # The one that a path stands for now; another file may have had it before.
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
        """Gives the node of a file at a path: the same one as long as the kernel knows it."""
        node = self._by_path.get((client.rank, path))
        if node is not None and node.status is not None and node.status.file == status.file:
            return node
        number = self._number(client, path, status.file)
        known = self._by_number.get(number)
        node = known or self._add(number, client, path)
        self._by_path[client.rank, path] = node
        return node

    def at(self, client: HostClient, path: bytes) -> Inode | None:
        """Gives the node that a path stands for, if the kernel may know it."""
        return self._by_path.get((client.rank, path))

    def forget(self, number: int, lookups: int) -> Inode | None:
        """Takes back that the kernel was told of a node; gives it when it is forgotten."""
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
        """The same for the same file, also when the kernel had forgotten it."""
        told = b"%d %d %d %b" % (client.rank, *file, path)
        number = int.from_bytes(blake2b(told, digest_size=8).digest(), "little") & _NUMBERS
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
