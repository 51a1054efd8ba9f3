"""Modules in the processes, whose parameters the program holds and which it calls like its own."""

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

    Its parameters are distributed tensors that share memory with those of the module in the
    processes, so any optimizer of the program can train it. Forward and backward run in the
    processes. The function that constructs the module can receive meshes and use PyTorch's
    distributed features: `fully_shard`, tensor parallelism, DTensors. The program's parameters are
    then the local shards.

    Args:
        what: The class or function that constructs the module in each process, or its import path.
        args: The positional arguments of `what`.
        keep_parameters: If True, the parameters stay in the processes and are trained there; see
            `optimizer`. This is required if the shapes of the parameters differ between processes.
        kwargs: The keyword arguments of `what`.

    Raises:
        OpFailed: The construction of the module failed.
        RanksDisagree: The shapes of the parameters differ between processes; use `keep_parameters`.
    """

    def __init__(
        self,
        what: Callable[..., torch.nn.Module] | str,
        *args: Any,
        keep_parameters: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        # Bypass `Module.__setattr__`, so that the object is not found by `named_modules` or saved.
        self.__dict__["_object"] = construct(what, args, kwargs)
        # Each module has a separate remote function, because the results depend on the module's
        # state.
        self.__dict__["_forward_there"] = remote(_run_alone if keep_parameters else _run)
        self.__dict__["_trained"] = []
        if keep_parameters:
            # Autograd records a call only if some tensor requires a gradient.
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
        """The module, as an argument for remote functions."""
        return self.__dict__["_object"]  # type: ignore[no-any-return]

    @property
    def mesh(self) -> DeviceMesh:
        """The processes that hold the module."""
        return self.ref.mesh

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module in every process."""
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
        """Create an optimizer in the processes, for the parameters there.

        Args:
            what: The class or function that constructs the optimizer from the parameters, or its
                import path.
            kwargs: The other arguments of `what`.
        """
        return RemoteOptimizer(_make_optimizer(self.ref, what, kwargs), self.ref)

    def train(self, mode: bool = True) -> RemoteModule:
        """Set the module to training or evaluation mode."""
        super().train(mode)
        if "_object" in self.__dict__:
            ask_method(self.ref, "train", (mode,), {})
        return self

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Future[ValueMesh[Any]]:
        """Call a method in every process; the future returns its results by rank."""
        return ask_method.call(self.ref, name, args, kwargs)


class RemoteOptimizer:
    """An optimizer in the processes; created by `RemoteModule.optimizer`.

    Args:
        ref: The optimizer in the processes.
        module: The module whose parameters it trains. After a failed step, both are unusable.
    """

    def __init__(self, ref: OpaqueRef, module: OpaqueRef) -> None:
        self.ref = ref
        self._module = module

    def step(self) -> None:
        """Perform an optimization step with the current gradients in the processes."""
        _step(self.ref, self._module)

    def zero_grad(self) -> None:
        """Reset the gradients in the processes."""
        _zero_grad(self.ref, self._module)


def _take_step(optimizer: OpaqueRef, module: OpaqueRef) -> None:
    optimizer.value.step()


def _drop_gradients(optimizer: OpaqueRef, module: OpaqueRef) -> None:
    optimizer.value.zero_grad()


_step = remote(_take_step, propagate="inspect").invalidating_objects()
_zero_grad = remote(_drop_gradients, propagate="inspect").invalidating_objects()
