"""Tensors as arguments and results, if torch is installed, which mesh-core never requires."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from mesh_core._serialization.pickler import decode, encode_value

torch = pytest.importorskip("torch", reason="torch is not installed; see the session `tensor`")

THRESHOLD = 65_536


def sent(value: Any, threshold: int = THRESHOLD, *, writable: bool = True) -> tuple[Any, list[int]]:
    """Send a value with its buffers in separate memory; return it and the sizes of its buffers."""
    body, buffers = encode_value(value, threshold)
    kind = bytearray if writable else bytes
    beside = [memoryview(kind(buffer)) for buffer in buffers]
    return decode(body, beside), [buffer.nbytes for buffer in buffers]


def same(one: Any, other: Any) -> bool:
    return bool(
        one.dtype == other.dtype
        and one.requires_grad == other.requires_grad
        and torch.equal(one.detach(), other.detach())
    )


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "int64", "float16", "bfloat16", "float64", "complex64"]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (300, 400)])
def test_tensor_of_any_type_and_shape_arrives(dtype: str, shape: tuple[int, ...]) -> None:
    value = torch.randn(shape).mul(10).to(getattr(torch, dtype))
    other, _ = sent(value)
    assert same(value, other)
    assert type(other) is torch.Tensor


def test_a_large_tensor_is_sent_out_of_band_without_a_copy() -> None:
    value = torch.zeros(100_000)
    body, (buffer,) = encode_value([value], THRESHOLD)
    assert len(body) < 1_000
    value[0] = 1
    assert bytes(buffer[:4]) == b"\x00\x00\x80?"


def test_tensor_shares_memory_with_the_buffer_and_can_be_written_to() -> None:
    body, buffers = encode_value(torch.zeros(100_000), THRESHOLD)
    memory = bytearray(buffers[0])
    other = decode(body, [memoryview(memory)])
    other[0] = 1
    assert bytes(memory[:4]) == b"\x00\x00\x80?"


def test_a_tensor_from_read_only_memory_is_a_copy() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        other, _ = sent(torch.zeros(100_000), writable=False)
    other += 1
    assert other.sum() == 100_000


@pytest.mark.parametrize("size", [4, 300])
def test_strides_are_kept(size: int) -> None:
    value = torch.arange(size * size).reshape(size, size).t()
    other, _ = sent(value)
    assert same(value, other)
    assert other.stride() == value.stride()


def test_requires_grad_is_preserved() -> None:
    leaf = torch.ones(3, requires_grad=True)
    for value in (leaf, leaf * 2, torch.nn.Parameter(torch.ones(3), requires_grad=False)):
        other, _ = sent(value)
        assert same(value, other)
        assert type(other) is type(value)
        assert other.is_leaf


def test_tensors_that_share_memory_still_share_it_after_transfer() -> None:
    whole = torch.zeros(1_000, 100)
    (one, row, again), sizes = sent([whole, whole[5], whole])
    assert sizes == [whole.nbytes]
    row[7] = 3
    assert one[5, 7] == 3
    assert one is again


def test_a_slice_transfers_only_its_own_elements() -> None:
    data = torch.randn(1_000, 1_000)
    batch, sizes = sent(data[100:200])
    assert sizes == [400_000]
    assert same(batch, data[100:200])
    assert batch.untyped_storage().nbytes() == 400_000


def test_slices_of_one_storage_transfer_only_the_range_they_span() -> None:
    data = torch.randn(1_000, 1_000)
    value = {"a": data[100:200], "b": data[150:250], "c": data[170].view(torch.int32)}
    other, sizes = sent(value)
    assert sizes == [600_000]
    assert all(same(value[name], other[name]) for name in value)
    other["a"][60] = 7
    assert (other["b"][10] == 7).all()


def test_a_column_of_a_large_tensor_is_sent_without_the_other_columns() -> None:
    data = torch.randn(1_000, 1_000)
    column, sizes = sent(data[:, 3])
    assert sizes == []
    assert same(column, data[:, 3])


def test_an_unaligned_slice_keeps_its_elements_intact() -> None:
    data = torch.arange(100_000, dtype=torch.int16)
    other, _ = sent([data[3:70_003], data[5:9]])
    assert same(other[0], data[3:70_003])
    assert same(other[1], data[5:9])


def test_an_expanded_tensor_transfers_one_element() -> None:
    value = torch.full((1,), 2.0).expand(1_000, 1_000)
    other, sizes = sent(value)
    assert sizes == []
    assert same(value, other)


def test_module_and_optimizer_arrive() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.BatchNorm1d(300))
    model[0].weight.register_hook(print)
    model[0].weight._backward_hooks.clear()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    (other, other_optimizer), _ = sent((model, optimizer))
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    assert other_optimizer.param_groups[0]["params"][0] is other[0].weight
    assert other[0].weight.requires_grad


def test_tied_parameters_stay_tied() -> None:
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3), "b": torch.nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    other, _ = sent(model)
    assert other["a"].weight is other["b"].weight


def test_custom_attributes_of_a_tensor_are_preserved() -> None:
    value = torch.ones(3)
    value.tag = "mine"
    parameter = torch.nn.Parameter(torch.ones(100_000))
    parameter.tag = "theirs"
    (one, other), sizes = sent([value, parameter])
    assert (one.tag, other.tag) == ("mine", "theirs")
    assert type(other) is torch.nn.Parameter
    assert sizes == [400_000]


def test_sparse_conjugate_and_meta_tensors_arrive() -> None:
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(sent(sparse)[0].to_dense(), torch.eye(3))
    conjugate = torch.tensor([1 + 2j]).conj()
    assert torch.equal(sent(conjugate)[0], conjugate)
    meta = sent(torch.empty(3, device="meta"))[0]
    assert (meta.device.type, meta.shape) == ("meta", (3,))


class Tagged(torch.Tensor):  # type: ignore[misc, name-defined]
    pass


def test_a_tensor_subclass_keeps_its_type() -> None:
    other, sizes = sent(torch.ones(100_000).as_subclass(Tagged))
    assert type(other) is Tagged
    assert sizes == [400_000]


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_storages_arrive() -> None:
    data = torch.arange(100_000.0)
    untyped, sizes = sent(data.untyped_storage())
    assert sizes == [400_000]
    assert bytes(untyped) == bytes(data.untyped_storage())
    typed, _ = sent(data.storage())
    assert typed[7] == 7.0


def test_types_devices_and_sizes_arrive() -> None:
    value = (torch.float32, torch.device("cpu"), torch.Size([1, 2]), torch.nn.Linear)
    assert sent(value)[0] == value


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensor_on_an_accelerator_arrives_on_the_cpu() -> None:
    value = torch.randn(300, 400, device="cuda", requires_grad=True)
    (other, row), _ = sent([value, value[3]])
    assert other.device.type == "cpu"
    assert same(other, value.cpu().detach().requires_grad_())
    assert torch.equal(row, other[3])
