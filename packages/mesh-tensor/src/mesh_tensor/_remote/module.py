"""Modules in the processes: the program has their parameters, and calls them like its own."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING, Any

import torch

from mesh_tensor._mesh.activation import no_mesh
from mesh_tensor._remote.autograd import bridge, record
from mesh_tensor._remote.function import remote
from mesh_tensor._remote.opaque_object import ask_method, construct
from mesh_tensor._remote.opaque_ref import OpaqueRef

if TYPE_CHECKING:
    from collections.abc import Callable

    from mesh_core import Future, ValueMesh
    from mesh_tensor._mesh.device_mesh import DeviceMesh

__all__ = ["RemoteModule"]


@remote
def _parameters(ref: OpaqueRef) -> dict[str, Any]:
    return {name: (one, one.requires_grad) for name, one in ref.value.named_parameters()}


def _run(ref: OpaqueRef, needs: tuple[bool, ...], args: Any, kwargs: Any) -> Any:
    module = ref.value
    return record(module, needs, args, kwargs, [p for p in module.parameters() if p.requires_grad])


def _run_alone(ref: OpaqueRef, needs: tuple[bool, ...], args: Any, kwargs: Any) -> Any:
    return record(ref.value, needs, args, kwargs)


def _optimizer(ref: OpaqueRef, what: Any, kwargs: dict[str, Any]) -> OpaqueRef:
    make = pkgutil.resolve_name(what) if isinstance(what, str) else what
    return OpaqueRef(make(ref.value.parameters(), **kwargs))


_make_optimizer = remote(_optimizer, propagate=lambda *_: OpaqueRef())


class RemoteModule(torch.nn.Module):
    """A module in each process of a mesh.

    Its parameters are distributed tensors that share memory with those of the module there, so that
    any optimizer of the program trains it. Calling it runs forward in the processes; backward runs
    there as well. What makes the module may get meshes, and do with the module what torch offers:
    `fully_shard`, tensor parallelism, DTensors. The program's parameters are the local parts then.

    Args:
        what: What makes the module there: its class, a function, or the path to import it by.
        args: What it is made with.
        keep_parameters: The parameters stay in the processes, as does their training: see
            `optimizer`. So it must be where the parts of processes have different shapes.
        kwargs: What it is made with, by name.

    Raises:
        OpFailed: The module could not be made.
        RanksDisagree: The parameters differ in shape: keep them in the processes.
    """

    def __init__(
        self,
        what: Callable[..., torch.nn.Module] | str,
        *args: Any,
        keep_parameters: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        # Not to be found by `named_modules` or be in the state.
        self.__dict__["_object"] = construct(what, args, kwargs)
        # Each has its own, as a module's state decides what it gives.
        self.__dict__["_forward_there"] = remote(_run_alone if keep_parameters else _run)
        self.__dict__["_trained"] = []
        if keep_parameters:
            # With no tensor to ask for a gradient, nothing would be recorded.
            with no_mesh.activate():
                self.__dict__["_anchor"] = torch.zeros((), requires_grad=True)
            return
        with torch.no_grad():
            found = _parameters(self.ref)
        for name, (tensor, is_trained) in found.items():
            *path, last = name.split(".")
            owner: torch.nn.Module = self
            for part in path:
                if part not in owner._modules:
                    owner.add_module(part, torch.nn.Module())
                owner = owner.get_submodule(part)
            parameter = torch.nn.Parameter(tensor, requires_grad=is_trained)
            owner.register_parameter(last, parameter)
            if is_trained:
                self.__dict__["_trained"].append((owner, last))

    @property
    def ref(self) -> OpaqueRef:
        """The module, as remote functions take it."""
        return self.__dict__["_object"]  # type: ignore[no-any-return]

    @property
    def mesh(self) -> DeviceMesh:
        """The processes that have it."""
        return self.ref.mesh

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it in every process."""
        parameters = [getattr(owner, name) for owner, name in self.__dict__["_trained"]]
        anchor = self.__dict__.get("_anchor")
        return bridge(
            self.__dict__["_forward_there"],
            (self.ref,),
            args,
            kwargs,
            parameters,
            anchor=anchor,
        )

    def optimizer(self, what: Callable[..., Any] | str, **kwargs: Any) -> RemoteOptimizer:
        """Makes an optimizer in the processes, of the parameters there.

        Args:
            what: What makes it of the parameters: its class, or the path to import it by.
            kwargs: What else that gets.
        """
        return RemoteOptimizer(_make_optimizer(self.ref, what, kwargs), self.ref)

    def train(self, mode: bool = True) -> RemoteModule:
        """Sets it to training or evaluation."""
        super().train(mode)
        if "_object" in self.__dict__:
            ask_method(self.ref, "train", (mode,), {})
        return self

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Future[ValueMesh[Any]]:
        """Calls a method in every process; the future gives what it returns, by rank."""
        return ask_method.call(self.ref, name, args, kwargs)


class RemoteOptimizer:
    """An optimizer in the processes; `RemoteModule.optimizer` makes it.

    Args:
        ref: The optimizer there.
        module: Whose parameters it has; where a step fails, neither is good for anything more.
    """

    def __init__(self, ref: OpaqueRef, module: OpaqueRef) -> None:
        self.ref = ref
        self._module = module

    def step(self) -> None:
        """Takes a step, with the gradients that are there."""
        _step(self.ref, self._module)

    def zero_grad(self) -> None:
        """Lets go of the gradients that are there."""
        _zero_grad(self.ref, self._module)


def _take_step(optimizer: OpaqueRef, module: OpaqueRef) -> None:
    optimizer.value.step()


def _drop_gradients(optimizer: OpaqueRef, module: OpaqueRef) -> None:
    optimizer.value.zero_grad()


_step = remote(_take_step, propagate="inspect").spoiling()
_zero_grad = remote(_drop_gradients, propagate="inspect").spoiling()
