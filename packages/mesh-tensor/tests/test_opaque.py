"""Objects and modules that live in the processes, and gradients through them."""

from typing import Any

import pytest
import torch

import mesh_tensor as mt
from mesh_tensor import OpaqueObject, OpaqueRef, RemoteModule, opaque_method, remote

SIZES = {"dp": 2}


ALIVE: list[int] = []


class Total:
    def __init__(self, start: float) -> None:
        ALIVE.append(1)
        self.total = torch.tensor(start)

    def __del__(self) -> None:
        ALIVE.pop()

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.total = self.total + x
        return self.total

    def peek(self) -> float:
        return float(self.total)

    def fail(self) -> None:
        raise ValueError("nothing to add up")


class RemoteTotal(OpaqueObject):
    @opaque_method
    def add(self, x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)


@remote
def alive() -> int:
    return len(ALIVE)


@remote(propagate=lambda x: OpaqueRef())
def keep(x: torch.Tensor) -> OpaqueRef:
    return OpaqueRef({"kept": x.clone()})


@remote
def kept(ref: OpaqueRef) -> torch.Tensor:
    return ref.value["kept"]  # type: ignore[no-any-return]


class TestObjects:
    def test_a_reference_is_passed_around(self, mesh: Any) -> None:
        first, second = keep(torch.ones(2)), keep(torch.ones(3))
        assert mt.inspect(kept(first)).tolist() == [1, 1]
        assert mt.inspect(kept(second)).tolist() == [1, 1, 1]
        with pytest.raises(AttributeError, match="only in its processes"):
            _ = first.value

    def test_methods_return_tensors_and_values(self, mesh: Any) -> None:
        total = RemoteTotal(Total, 10.0)
        assert mt.inspect(total.add(mesh.rank("dp") + torch.tensor(1.0)), dp=1).item() == 12
        assert list(total.ask("peek").get().values()) == [11, 12]

    def test_the_object_is_deleted_with_its_last_reference(self, mesh: Any) -> None:
        before = list(alive.call().get().values())
        total = RemoteTotal(Total, 1.0)
        assert list(alive.call().get().values()) == [one + 1 for one in before]
        del total
        assert list(alive.call().get().values()) == before

    def test_a_failed_constructor_fails_operations_on_the_object(self, mesh: Any) -> None:
        total = RemoteTotal("math.sqrt", -1.0)
        with pytest.raises(mt.OpFailed, match="ValueError"):
            mt.inspect(total.add(torch.ones(())))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * gradients[0]


class TestGradients:
    def test_an_autograd_function_runs_in_the_processes(self, mesh: Any) -> None:
        cube = mt.remote_autograd_function(Cube)
        x = (mesh.rank("dp") + torch.ones(2)).requires_grad_()
        (cube(x * 2) * 5).sum().backward()
        assert [mt.inspect(x.grad, dp=dp).tolist() for dp in range(2)] == [[120] * 2, [480] * 2]

    def test_trees_and_outputs_without_gradients_are_supported(self, mesh: Any) -> None:
        def attend(tree: dict[str, torch.Tensor], by: float) -> Any:
            return tree["a"] * tree["b"] * by, tree["b"].argmax()

        run = mt.remote_autograd_function(attend)
        a, b = torch.ones(3, requires_grad=True), torch.arange(3.0)
        product, place = run({"a": a, "b": b}, by=2.0)
        assert not place.requires_grad
        product.sum().backward()
        assert mt.inspect(a.grad).tolist() == [0, 2, 4]
        with torch.no_grad():
            assert not run({"a": a, "b": b}, by=2.0)[0].requires_grad


class Net(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)  # type: ignore[no-any-return]


def trained_here(steps: int) -> tuple[list[float], torch.nn.Module]:
    with mt.no_mesh.activate():
        net, x = Net(8), torch.linspace(-1, 1, 12).view(3, 4)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(steps):
            loss = net(x).pow(2).mean()
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return losses, net


class TestModules:
    @pytest.mark.parametrize("keep_parameters", [False, True])
    def test_a_remote_module_trains_like_a_local_module(
        self, mesh: Any, keep_parameters: bool
    ) -> None:
        expected, _ = trained_here(4)
        net = RemoteModule(Net, 8, keep_parameters=keep_parameters)
        x = torch.linspace(-1, 1, 12).view(3, 4)
        optimizer: Any
        if keep_parameters:
            optimizer = net.optimizer(torch.optim.SGD, lr=0.1, momentum=0.9)
        else:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(4):
            loss = net(x).pow(2).mean()
            losses.append(mt.inspect(loss).item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert losses == pytest.approx(expected, abs=1e-6)

    def test_the_state_dict_has_the_names_of_the_module(self, mesh: Any) -> None:
        net = RemoteModule(Net, 8)
        assert list(net.state_dict()) == list(Net(8).state_dict())
        x = torch.ones(1, 4)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.zero_()
            assert mt.inspect(net(x)).tolist() == [[0, 0]]

    def test_gradients_flow_through_to_the_input(self, mesh: Any) -> None:
        net, x = RemoteModule(Net, 8), torch.ones(1, 4, requires_grad=True)
        net(x).sum().backward()
        _, here = trained_here(0)
        with mt.no_mesh.activate():
            local = torch.ones(1, 4, requires_grad=True)
            here(local).sum().backward()
            assert torch.allclose(mt.inspect(x.grad), local.grad)
