"""The bytes of a checkpoint in memory: a header with a hash, the structure, and the tensors.

The hash covers everything else, so a copy that is damaged or incomplete is never loaded. For a
`DTensor`, as in the state of FSDP2, the local part is stored. It becomes a `DTensor` again in the
process group that exists when it is loaded.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard

import torch

from mesh_tensor._training.errors import CheckpointCorrupt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Placement

__all__ = ["EncodedState", "check_state", "decode_state", "device_meshes", "encode_state"]

_MAGIC = b"MeshCkp1"
_DIGEST_LEN = 16
# The magic number, the step, and the lengths of the structure and of all bytes; then the hash.
_FIELDS = struct.Struct("<8sQQQ")
_HEADER_LEN = _FIELDS.size + _DIGEST_LEN
_ALIGN = 64
# Identifies a device mesh within a program, also in the next process group.
_MeshKey: TypeAlias = tuple[tuple[str, ...] | None, tuple[int, ...]]


class _Place(NamedTuple):
    """Where a tensor is stored."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """In bytes, from the first tensor."""


class _Sharding(NamedTuple):
    """How a local tensor is a part of a `DTensor`."""

    mesh: _MeshKey
    placements: tuple[Placement, ...]
    shape: tuple[int, ...]
    stride: tuple[int, ...]


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
        self.meshes: dict[_MeshKey, DeviceMesh] = {}
        self._end = 0

    def persistent_id(self, obj: Any) -> tuple[_Place, _Sharding | None] | None:
        if not isinstance(obj, torch.Tensor):
            return None
        sharding = None
        tensor = obj.detach()
        if _is_dtensor(tensor):
            key = _mesh_key(tensor.device_mesh)
            sharding = _Sharding(key, tensor.placements, tuple(tensor.shape), tensor.stride())
            self.meshes[key] = tensor.device_mesh
            tensor = tensor.to_local()
        place = _Place(tensor.dtype, tuple(tensor.shape), _aligned(self._end))
        self._end = place.offset + _nbytes(place)
        self.tensors.append((place, tensor))
        return place, sharding


class _Unpickler(pickle.Unpickler):
    def __init__(
        self,
        structure: memoryview,
        memory: memoryview,
        data_start: int,
        meshes: Mapping[_MeshKey, DeviceMesh],
    ) -> None:
        super().__init__(io.BytesIO(structure))
        self._meshes = meshes
        self._memory = memory
        self._data_start = data_start

    def persistent_load(self, pid: Any) -> torch.Tensor:
        place, sharding = pid
        if _nbytes(place):
            tensor = _tensor_at(self._memory, self._data_start, place).clone()
        else:
            tensor = torch.empty(place.shape, dtype=place.dtype)
        return tensor if sharding is None else self._as_dtensor(tensor, sharding)

    def _as_dtensor(self, local: torch.Tensor, sharding: _Sharding) -> torch.Tensor:
        # Only programs that shard tensors import it, because the import is slow.
        from torch.distributed.tensor import DTensor  # noqa: PLC0415

        mesh = self._meshes.get(sharding.mesh)
        if mesh is None:
            names, sizes = sharding.mesh
            raise CheckpointCorrupt(
                f"the checkpoint has tensors on a device mesh of sizes {sizes}, names {names}, and "
                "the state of the program has none on such a mesh after join()"
            )
        return DTensor.from_local(
            local.to(mesh.device_type),
            mesh,
            sharding.placements,
            run_check=False,
            shape=torch.Size(sharding.shape),
            stride=sharding.stride,
        )


def encode_state(state: Mapping[str, Any]) -> EncodedState:
    """Encode the structure of a state, and find its tensors."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(state)
    return EncodedState(file.getvalue(), pickler.tensors)


def device_meshes(state: Mapping[str, Any]) -> Mapping[_MeshKey, DeviceMesh]:
    """Return the meshes of devices on which the tensors of a state are sharded."""
    pickler = _Pickler(io.BytesIO())
    pickler.dump(state)
    return pickler.meshes


def check_state(memory: memoryview, step: int) -> None:
    """Check that memory contains the intact checkpoint of a step.

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


def decode_state(
    memory: memoryview, meshes: Mapping[_MeshKey, DeviceMesh] | None = None
) -> dict[str, Any]:
    """Return the state of a checkpoint, with all tensors on the CPU.

    Args:
        memory: The checkpoint, which `check_state` has accepted. Bytes after it are ignored.
        meshes: The meshes of devices of its sharded tensors.

    Raises:
        CheckpointCorrupt: One of the meshes is missing.
    """
    _, _, structure_len, _ = _FIELDS.unpack(memory[: _FIELDS.size])
    structure = memory[_HEADER_LEN : _HEADER_LEN + structure_len]
    data_start = _aligned(_HEADER_LEN + structure_len)
    state: dict[str, Any] = _Unpickler(structure, memory, data_start, meshes or {}).load()
    return state


def _is_dtensor(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    # A tensor can be a `DTensor` only if the module has been imported.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _mesh_key(mesh: DeviceMesh) -> _MeshKey:
    return mesh.mesh_dim_names, tuple(mesh.shape)


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
