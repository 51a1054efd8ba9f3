"""The arguments of a remote function: those sent as slots, and those sent as bytes."""

from __future__ import annotations

import pickle
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped,unused-ignore]
import torch
from torch.utils import _pytree as pytree

from mesh_tensor._errors import TensorError, WrongMesh
from mesh_tensor._instructions.compiled_op import Operand
from mesh_tensor._mesh.activation import active_mesh, check_stream, no_mesh
from mesh_tensor._mesh.device_mesh import DeviceMesh, mixed_meshes
from mesh_tensor._mesh.process_group import RemoteProcessGroup
from mesh_tensor._remote.call_protocol import ATOMS, GroupArg, MeshArg, ObjectArg
from mesh_tensor._remote.opaque_ref import OpaqueRef
from mesh_tensor._tensor.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from mesh_tensor._tensor.meta import Meta

__all__ = ["Arguments"]

_FUNCTIONS = (FunctionType, BuiltinFunctionType, type)


class _NotCacheable(Exception):
    """An argument cannot be a cache key, because it may change while remaining equal to itself."""


class Arguments:
    """The arguments of one call.

    Args:
        name: The name of the callee.
        args: The positional arguments.
        kwargs: The keyword arguments.
        mesh: The mesh of the call, if it does not follow from the arguments.
        is_part: Whether the arguments may be on more processes than `mesh`.

    Attributes:
        mesh: The mesh on which the function is called.
        operands: The arguments that are sent as slots: tensors and opaque objects.
        key: Identifies calls with the same kinds of results; None if the arguments have no such
            key.

    Raises:
        WrongMesh: The arguments are on different meshes.
        TensorError: Neither the arguments nor an active mesh determine the processes.
    """

    def __init__(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        mesh: DeviceMesh | None = None,
        is_part: bool = False,
    ) -> None:
        leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self.operands: list[Any] = [
            one
            for one in leaves
            if type(one) is Tensor or (type(one) is OpaqueRef and one.is_remote)
        ]
        self.mesh = _mesh_of(name, self.operands, mesh, is_part)
        #: The process groups that the call needs, each as a mesh and some of its dimensions.
        self.groups: list[tuple[DeviceMesh, tuple[str, ...]]] = []
        self._given: list[Any] = []
        index = 0
        for one in leaves:
            kind = type(one)
            if kind is Tensor:
                self._given.append(Operand(index))
                index += 1
            elif kind is OpaqueRef and one.is_remote:
                self._given.append(ObjectArg(index))
                index += 1
            elif isinstance(one, (DeviceMesh, RemoteProcessGroup)):
                self._given.append(self._placeholder(name, one))
            else:
                self._given.append(one)
        #: Whether the arguments include local tensors, which are sent with each call.
        self.has_local_tensors = any(isinstance(one, torch.Tensor) for one in self._given)
        self.key = self._key()

    @property
    def objects(self) -> tuple[int, ...]:
        """The numbers of the opaque objects among the operands."""
        return tuple(one._number for one in self.operands if type(one) is OpaqueRef)

    @property
    def slots(self) -> list[int]:
        """The slots of the operands."""
        return [one._ref.slot for one in self.operands]

    def blob(self) -> bytes:
        """Return all arguments that are not sent as slots, pickled."""
        plain = pytree.tree_unflatten(self._given, self._spec)
        with no_mesh.activate():
            if all(type(one) in ATOMS or type(one) in _PLACEHOLDERS for one in self._given):
                try:
                    return pickle.dumps(plain, 5)
                except (pickle.PicklingError, AttributeError):
                    pass
            return cloudpickle.dumps(plain)  # type: ignore[no-any-return]

    def fake_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any], list[torch.Tensor | None]]:
        """Return the arguments with tensors without values, and these tensors by operand.

        Operands that share memory are represented by tensors that share memory. The mode that
        creates tensors without values must be active.
        """
        fakes = self._fakes()
        leaves = [
            fakes[one.index] if type(one) is Operand else self._local(one) for one in self._given
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return args, kwargs, fakes

    def _local(self, one: Any) -> Any:
        if type(one) is ObjectArg:
            return self.operands[one.index]
        if isinstance(one, torch.Tensor):
            return torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=one.device)
        return one

    def _fakes(self) -> list[torch.Tensor | None]:
        engine = self.mesh._engine
        storages: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        by_slot: dict[int, torch.Tensor] = {}
        fakes: list[torch.Tensor | None] = []
        tensors = [one for one in self.operands if type(one) is Tensor]
        for one in self.operands:
            if type(one) is not Tensor:
                fakes.append(None)
                continue
            slot, meta = one._ref.slot, one._meta
            family = (engine.bases[slot], meta.dtype)
            if slot not in by_slot:
                if family not in storages:
                    alike = [t._meta for t in tensors if _family(engine, t) == family]
                    size = max(other.storage_len() for other in alike)
                    storages[family] = torch.empty(size, dtype=meta.dtype, device=meta.device)
                by_slot[slot] = storages[family].as_strided(meta.shape, meta.strides, meta.offset)
            fakes.append(by_slot[slot])
        return fakes

    def _placeholder(self, name: str, one: DeviceMesh | RemoteProcessGroup) -> MeshArg | GroupArg:
        mesh = one if isinstance(one, DeviceMesh) else one.mesh
        inside = set(mesh._region.ranks())
        if mesh._engine is not self.mesh._engine or not inside.issuperset(
            self.mesh._region.ranks()
        ):
            raise WrongMesh(
                f"{name} runs on {self.mesh}, which is not contained in {mesh}: pass a mesh with"
                " all processes of the call"
            )
        mesh = mesh._on(self.mesh._stream_slots.stream)
        if isinstance(one, RemoteProcessGroup):
            self.groups.append((mesh, one.dims))
            return GroupArg(mesh._encoded, one.dims)
        self.groups += [(mesh, (label,)) for label in mesh.sizes] or [(mesh, ())]
        return MeshArg(mesh._encoded, self._device_type())

    def _device_type(self) -> str:
        kinds = [one._meta.device.type for one in self.operands if type(one) is Tensor]
        return next((kind for kind in kinds if kind != "cpu"), torch.get_default_device().type)

    def _key(self) -> Hashable | None:
        slots = self.slots
        bases = [self.mesh._engine.bases[slot] for slot in slots]
        try:
            constants = tuple(map(self._key_of, self._given))
        except _NotCacheable:
            return None
        aliases = tuple(
            (slots.index(slot), bases.index(base)) for slot, base in zip(slots, bases, strict=True)
        )
        return self.mesh, self._spec, constants, aliases

    def _key_of(self, one: Any) -> Hashable:
        kind = type(one)
        if kind is Operand:
            meta: Meta = self.operands[one.index]._meta
            return meta
        if kind is ObjectArg:
            return ObjectArg
        if kind is float:
            return float, one.hex()
        if kind in ATOMS or kind in _PLACEHOLDERS:
            return kind, one
        if isinstance(one, torch.Tensor):
            return torch.Tensor, one.shape, one.stride(), one.dtype, one.device
        if isinstance(one, _FUNCTIONS):
            return one
        hasher: object = kind.__hash__
        if hasher is None or hasher is object.__hash__:
            raise _NotCacheable
        return kind, one


_PLACEHOLDERS = (Operand, ObjectArg, MeshArg, GroupArg)


def _family(engine: Any, one: Tensor) -> tuple[int, torch.dtype]:
    return engine.bases[one._ref.slot], one._meta.dtype


def _mesh_of(
    name: str, operands: Sequence[Any], where: DeviceMesh | None, is_part: bool
) -> DeviceMesh:
    meshes = {one._meta.mesh if type(one) is Tensor else one._mesh for one in operands}
    for mesh in meshes:
        check_stream(mesh)
    if where is not None:
        return _checked(name, meshes, where, is_part)
    if len(meshes) > 1:
        raise mixed_meshes(name, meshes)
    if meshes:
        return meshes.pop()
    mesh = active_mesh.get()
    if mesh is None:
        raise TensorError(
            f"{name} has no argument on a mesh, and no mesh is active: call it within"
            " mesh.activate()"
        )
    return mesh


def _checked(name: str, meshes: set[DeviceMesh], where: DeviceMesh, is_part: bool) -> DeviceMesh:
    """Check that the operands are on the processes of a call."""
    for mesh in meshes:
        here, there = where._region.ranks(), mesh._region.ranks()
        is_there = set(here) <= set(there) if is_part else here == there
        if mesh._engine is not where._engine or not is_there:
            raise WrongMesh(
                f"{name} is called on {where}, but got a tensor of {mesh}: both must have the same"
                " processes; slice the mesh of the actors, or move the tensor with to_mesh"
            )
    streams = {mesh._stream_slots for mesh in meshes}
    if len(streams) > 1:
        raise mixed_meshes(
            name, {where._engine.mesh(where._region, stream_slots) for stream_slots in streams}
        )
    return where._engine.mesh(where._region, streams.pop()) if streams else where
