"""The endpoints of a worker as plain methods, for systems whose actors are ordinary classes."""

from __future__ import annotations

import os
import time
from typing import Any


class PlainWorker:
    """The worker of `bench.drivers.actor_program`, without the calls that it makes itself."""

    def noop(self, x: int) -> int:
        return x

    def pid(self) -> int:
        return os.getpid()

    def echo(self, x: Any) -> Any:
        return x

    def look(self, x: Any, read: bool) -> int:
        return int(x.max()) if read else int(x[0]) + int(x[-1])

    def hang(self, path: str) -> None:
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, b"x")
        os.close(fd)
        time.sleep(600)

    def fill_memory(self) -> None:
        kept = []
        while True:
            kept.append(bytearray(b"x") * (32 << 20))


class PlainAsyncWorker:
    """The worker whose methods are coroutines."""

    async def noop(self, x: int) -> int:
        return x

    async def pid(self) -> int:
        return os.getpid()
