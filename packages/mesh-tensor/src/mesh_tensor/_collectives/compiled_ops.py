"""Collectives as the program issues them: a compiled op for each kind of operand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mesh_tensor._instructions.compiled_op import Operand
from mesh_tensor._instructions.results import NewTensor
from mesh_tensor._mesh.device_mesh import mixed_meshes

if TYPE_CHECKING:
    from mesh_tensor._collectives.collective_ops import Move, Reduction
    from mesh_tensor._instructions.compiled_op_cache import CacheEntry
    from mesh_tensor._mesh.device_mesh import DeviceMesh
    from mesh_tensor._tensor.meta import Meta
    from mesh_tensor._tensor.tensor import Tensor

__all__ = ["issue_move", "issue_part", "issue_reduce"]


def issue_reduce(
    tensor: Tensor, how: Reduction, out: Tensor | None = None, in_place: bool = False
) -> Tensor:
    """Issue a reduction; see `_collectives.reduce`."""
    mesh = tensor._meta.mesh
    engine = mesh._engine
    engine._join()
    how = replace(how, in_place=in_place, out=out is not None)
    if out is not None:
        shape = how.result_shape(mesh.size(how.dims))
        if out._meta.mesh is not mesh and out._meta.mesh._on(None) is mesh._on(None):
            raise mixed_meshes("reduce", {mesh, out._meta.mesh})
        if out._meta.mesh is not mesh or tuple(out.shape) != shape or out.dtype != how.dtype:
            raise ValueError(f"a result of shape {shape} and {how.dtype} does not fit into {out}")
    key = ("reduce", tensor._meta, how)
    entry = engine._entries.get(key)
    if entry is None:
        entry = _define_reduce(key, tensor._meta, how)
    if out is not None:
        return engine._issue_own(entry, [tensor, out])
    return engine._issue_own(entry, [tensor])


def issue_move(tensor: Tensor, mesh: DeviceMesh, how: Move) -> Tensor:
    """Issue a move; see `_collectives.to_mesh`."""
    engine = mesh._engine
    engine._join()
    key = ("move", tensor._meta, mesh)
    entry = engine._entries.get(key)
    if entry is None:
        made = NewTensor(engine.metas.dense(mesh, how.shape, how.dtype, how.device), None)
        both = {rank for source, goals in how.routes for rank in (source, *goals)}
        entry = engine._define(
            key,
            engine.mesh(engine._all.select(procs=sorted(both)), mesh._stream_slots),
            made,
            kind="move",
            name="to_mesh",
            operands=1,
            results=(None,),
            detail=how,
        )
    return engine._issue_own(entry, [tensor])


def issue_part(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """Return the values of a subset of the processes, as a tensor on that subset."""
    engine = mesh._engine
    key = ("part", tensor._meta, mesh)
    entry = engine._entries.get(key)
    if entry is None:
        meta = engine.metas.moved(tensor._meta, mesh)
        entry = engine._define(
            key,
            mesh,
            NewTensor(meta, 0),
            kind="op",
            name="aten.alias.default",
            args=(Operand(0),),
            operands=1,
            results=(None,),
        )
    return engine._issue_own(entry, [tensor])


def _define_reduce(key: tuple[Any, ...], meta: Meta, how: Reduction) -> CacheEntry:
    mesh = meta.mesh
    engine = mesh._engine
    operands = 1
    results: tuple[int | None, ...] = ()
    mutated: tuple[int, ...] = ()
    parts: NewTensor | Operand
    if how.out:
        operands, mutated, parts = 2, (1,), Operand(1)
    elif how.in_place:
        mutated, parts = (0,), Operand(0)
    else:
        results = (None,)
        shape = how.result_shape(mesh.size(how.dims))
        parts = NewTensor(engine.metas.dense(mesh, shape, how.dtype, how.device), None)
    return engine._define(
        key,
        mesh,
        parts,
        kind="reduce",
        name=f"reduce({how.op})",
        operands=operands,
        results=results,
        mutated=mutated,
        detail=how,
    )
