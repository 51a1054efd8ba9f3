"""Pulls: copies into buffers of one process, their encoding, and their execution there."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mesh_rdma import _core
from mesh_rdma._completions.group import CompletionGroup
from mesh_rdma._errors import RDMATransportError
from mesh_rdma._paths.selection import Path, path_to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mesh_core.spi import Completion

__all__ = ["Pull", "begin_local_pulls", "decode_pulls", "encode_pulls"]

_COUNTS = struct.Struct("<HHI")
_HANDLE = struct.Struct("<H")
_PULL = struct.Struct("<HHQQQB")
_DIM = struct.Struct("<QQQ")
#: The minimum row length for which a plug-in gets a separate request per row.
_ROW_LEN_MIN = 64 << 10


@dataclass(frozen=True, slots=True)
class Pull:
    """Rows of bytes from one buffer to another.

    Attributes:
        source: The buffer to read.
        ours: The buffer to write: one of the process that runs the pull.
        from_: The offset of the first row in the registration of `source`, in bytes.
        to: The offset of the first row in the registration of `ours`, in bytes.
        row_len: The bytes of a row.
        dims: For each dimension of rows, outermost first: the count, and the strides in bytes in
            `source` and in `ours`.
    """

    source: _core.Handle
    ours: _core.Handle
    from_: int
    to: int
    row_len: int
    dims: tuple[tuple[int, int, int], ...] = ()


def encode_pulls(pulls: Sequence[Pull]) -> bytes:
    """Encode pulls for another process; the caller keeps all buffers alive."""
    sources: dict[_core.Handle, int] = {}
    ours: dict[_core.Handle, int] = {}
    body = bytearray()
    for pull in pulls:
        source = sources.setdefault(pull.source, len(sources))
        place = ours.setdefault(pull.ours, len(ours))
        dims = pull.dims
        body += _PULL.pack(source, place, pull.from_, pull.to, pull.row_len, len(dims))
        for dim in dims:
            body += _DIM.pack(*dim)
    head = bytearray(_COUNTS.pack(len(sources), len(ours), len(pulls)))
    for handle in (*sources, *ours):
        encoded = handle.encode_borrowed()
        head += _HANDLE.pack(len(encoded)) + encoded
    return bytes(head + body)


def decode_pulls(payload: memoryview) -> list[Pull]:
    """Decode pulls.

    Raises:
        ValueError: The bytes are malformed, or `ours` is a buffer of another process.
    """
    try:
        return _decode_pulls(payload)
    except (struct.error, IndexError) as error:
        raise ValueError("malformed pulls") from error


def _decode_pulls(payload: memoryview) -> list[Pull]:
    source_count, our_count, pull_count = _COUNTS.unpack_from(payload)
    at = _COUNTS.size
    handles = []
    for _ in range(source_count + our_count):
        (length,) = _HANDLE.unpack_from(payload, at)
        at += _HANDLE.size
        handles.append(_core.Handle.decode_borrowed(bytes(payload[at : at + length])))
        at += length
    ours = handles[source_count:]
    if not all(one.is_ours for one in ours):
        raise ValueError("the destination is a buffer of another process")
    pulls = []
    for _ in range(pull_count):
        source, place, from_, to, row_len, dim_count = _PULL.unpack_from(payload, at)
        at += _PULL.size
        dims = tuple(_DIM.iter_unpack(payload[at : at + dim_count * _DIM.size]))
        at += dim_count * _DIM.size
        pulls.append(Pull(handles[source], ours[place], from_, to, row_len, dims))
    return pulls


def begin_local_pulls(pulls: Sequence[Pull], timeout: float | None) -> Completion[None]:
    """Start copies to buffers of this process, each over the best transport to its source.

    Raises:
        RDMAError: A source cannot be reached, or a buffer was released.
    """
    paths: dict[_core.Handle, Path] = {}
    native: list[tuple[_core.Target, int, _core.Handle, int, int, Sequence[_Dim]]] = []
    parts: list[Completion[None]] = []
    for pull in pulls:
        path = paths.get(pull.source)
        if path is None:
            path = paths[pull.source] = path_to(pull.source)
        is_on_device = pull.source.is_on_device or pull.ours.is_on_device
        target = path.target
        if is_on_device or not isinstance(target, _core.Target):
            # Built-in transports do not reach devices, so plug-ins copy even short rows there.
            if is_on_device or not pull.dims or pull.row_len >= _ROW_LEN_MIN:
                parts += _by_rows(path, pull, timeout)
                continue
            target = _built_in(pull.source)
        native.append((target, pull.from_, pull.ours, pull.to, pull.row_len, pull.dims))
    if not parts:
        return _core.pull(native, timeout, pulls)
    if native:
        parts.append(_core.pull(native, timeout, pulls))
    return _Pulled(parts, pulls)


class _Pulled(CompletionGroup):
    """Pulls by several transports, with the buffers kept alive for them."""

    def __init__(self, parts: Sequence[Completion[None]], pulls: Sequence[Pull]) -> None:
        self._pulls = pulls
        super().__init__(parts)


_Dim = tuple[int, int, int]


def _by_rows(path: Path, pull: Pull, timeout: float | None) -> list[Completion[None]]:
    """Start one request for each row."""
    memory = pull.ours.pin()
    target = path.target_for(memory)
    rows = [(pull.from_, pull.to)]
    for count, from_stride, to_stride in pull.dims:
        rows = [
            (from_ + i * from_stride, to + i * to_stride)
            for from_, to in rows
            for i in range(count)
        ]
    begun = [target.read(memory.part(to, pull.row_len), from_, timeout) for from_, to in rows]
    return [one for one in begun if one is not None]


def _built_in(source: _core.Handle) -> _core.Target:
    target, refused = source.select_target(None)
    if target is None:
        reasons = "; ".join(f"{one}: {why}" for one, why in refused)
        raise RDMATransportError(f"no transport to {source.owner} for short rows: {reasons}")
    return target
