"""The bytes of a checkpoint in memory: a header with a hash, the structure, and the tensors.

The hash covers everything else, so a copy that is damaged or incomplete is never loaded.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from mesh_tensor._training.errors import CheckpointCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EncodedState", "decode_state", "encode_state"]

_MAGIC = b"MeshCkp1"
_DIGEST_LEN = 16
# The magic number, the step, and the lengths of the structure and of all bytes; then the hash.
_FIELDS = struct.Struct("<8sQQQ")
_HEADER_LEN = _FIELDS.size + _DIGEST_LEN
_ALIGN = 64


class _Place(NamedTuple):
    """Where a tensor is stored."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """In bytes, from the first tensor."""


class EncodedState:
    """A state whose structure is encoded; its tensors are copied by `write`.

    Attributes:
        nbytes: The size of the checkpoint, in bytes.
    """

    def __init__(self, structure: bytes, tensors: list[tuple[_Place, torch.Tensor]]) -> None:
        self._structure = structure
        self._tensors = tensors
        self._data_start = _aligned(_HEADER_LEN + len(structure))
        last = tensors[-1][0] if tensors else None
        data_len = 0 if last is None else last.offset + _nbytes(last)
        self.nbytes = self._data_start + data_len

    def write(self, step: int, memory: memoryview) -> None:
        """Write the checkpoint of a step to memory of at least `nbytes` bytes."""
        structure_end = _HEADER_LEN + len(self._structure)
        memory[_HEADER_LEN:structure_end] = self._structure
        memory[structure_end : self._data_start] = bytes(self._data_start - structure_end)
        for place, tensor in self._tensors:
            if tensor.numel():
                _tensor_at(memory, self._data_start, place).copy_(tensor)
        memory[: _FIELDS.size] = _FIELDS.pack(_MAGIC, step, len(self._structure), self.nbytes)
        memory[_FIELDS.size : _HEADER_LEN] = _digest(memory[: self.nbytes])


class _Pickler(pickle.Pickler):
    """Replaces tensors by the places where they will be stored."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[tuple[_Place, torch.Tensor]] = []
        self._end = 0

    def persistent_id(self, obj: Any) -> _Place | None:
        if not isinstance(obj, torch.Tensor):
            return None
        tensor = obj.detach()
        place = _Place(tensor.dtype, tuple(tensor.shape), _aligned(self._end))
        self._end = place.offset + _nbytes(place)
        self.tensors.append((place, tensor))
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(self, structure: memoryview, memory: memoryview, data_start: int) -> None:
        super().__init__(io.BytesIO(structure))
        self._memory = memory
        self._data_start = data_start

    def persistent_load(self, pid: Any) -> torch.Tensor:
        place = _Place(*pid)
        if not _nbytes(place):
            return torch.empty(place.shape, dtype=place.dtype)
        return _tensor_at(self._memory, self._data_start, place).clone()


def encode_state(state: Mapping[str, Any]) -> EncodedState:
    """Encode the structure of a state, and find its tensors."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(state)
    return EncodedState(file.getvalue(), pickler.tensors)


def decode_state(memory: memoryview, step: int) -> dict[str, Any]:
    """Check a checkpoint and return its state, with all tensors on the CPU.

    Args:
        memory: The checkpoint; further bytes behind it are ignored.
        step: The step that it must be of.

    Raises:
        CheckpointCorrupt: The bytes are not a checkpoint of this step, or have changed since.
    """
    if len(memory) < _HEADER_LEN:
        raise CheckpointCorrupt(f"the checkpoint of step {step} has only {len(memory)} bytes")
    magic, found, structure_len, nbytes = _FIELDS.unpack(memory[: _FIELDS.size])
    if magic != _MAGIC or found != step:
        raise CheckpointCorrupt(f"the memory does not contain a checkpoint of step {step}")
    data_start = _aligned(_HEADER_LEN + structure_len)
    if not data_start <= nbytes <= len(memory):
        raise CheckpointCorrupt(f"the checkpoint of step {step} is incomplete")
    if _digest(memory[:nbytes]) != memory[_FIELDS.size : _HEADER_LEN]:
        raise CheckpointCorrupt(f"the checkpoint of step {step} has changed since it was written")
    structure = memory[_HEADER_LEN : _HEADER_LEN + structure_len]
    state: dict[str, Any] = _Unpickler(structure, memory, data_start).load()
    return state


def _digest(memory: memoryview) -> bytes:
    """Hash everything but the hash itself."""
    digest = hashlib.blake2b(memory[: _FIELDS.size], digest_size=_DIGEST_LEN)
    digest.update(memory[_HEADER_LEN:])
    return digest.digest()


def _tensor_at(memory: memoryview, data_start: int, place: _Place) -> torch.Tensor:
    start = data_start + place.offset
    flat = torch.frombuffer(memory[start : start + _nbytes(place)], dtype=torch.uint8)
    return flat.view(place.dtype).reshape(place.shape)


def _nbytes(place: _Place) -> int:
    return place.dtype.itemsize * torch.Size(place.shape).numel()


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN
