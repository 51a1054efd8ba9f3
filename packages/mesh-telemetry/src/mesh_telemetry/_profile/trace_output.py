"""The output file of a trace, which appears when it is complete, and may be compressed."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

__all__ = ["trace_output"]

_GZIP_LEVEL = 5


@contextmanager
def trace_output(path: Path) -> Iterator[BinaryIO]:
    """Yield the file to write to; it replaces the path if the block ends without an error.

    Raises:
        OSError: The file cannot be written.
    """
    incomplete = path.with_name(f"{path.name}.part-{os.urandom(4).hex()}")
    try:
        with ExitStack() as stack:
            file = cast(BinaryIO, stack.enter_context(incomplete.open("xb")))
            if path.suffix == ".gz":
                packed = gzip.GzipFile(path.stem, "wb", _GZIP_LEVEL, file)
                file = cast(BinaryIO, stack.enter_context(packed))
            yield file
        incomplete.replace(path)
    finally:
        with suppress(OSError):
            incomplete.unlink()
