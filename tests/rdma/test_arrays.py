"""Memory of numpy, torch and DLPack objects as buffers: zero-copy, without importing them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from mesh_rdma import RDMABuffer, RDMAReadOnlyError

np = pytest.importorskip("numpy")


def bytes_of(buffer: RDMABuffer) -> bytes:
    here = bytearray(buffer.size())
    buffer.read_into(here).get()
    return bytes(here)


class OnlyDLPack:
    """An object that supports DLPack and nothing else."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def __dlpack__(self, **options: Any) -> Any:
        return self._source.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._source.__dlpack_device__()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", "f4", "c16", "M8[s]", "i4,f8"])
def test_numpy_arrays_of_either_order(order: Any, dtype: str) -> None:
    size = 105 * np.dtype(dtype).itemsize
    raw = bytearray(index % 251 for index in range(size))
    array = np.frombuffer(raw, dtype=dtype).reshape((3, 5, 7), order=order)
    buffer = RDMABuffer(array)
    assert bytes_of(buffer) == raw
    other = np.empty_like(array)
    buffer.read_into(other).get()
    assert other.tobytes("A") == raw
    buffer.write_from(np.zeros_like(array)).get()
    assert raw == bytes(size)


def test_numpy_views_are_used_in_place() -> None:
    array = np.arange(100, dtype="i8").reshape(10, 10)
    assert bytes_of(RDMABuffer(array[2:4])) == array[2:4].tobytes()
    assert bytes_of(RDMABuffer(array.T)) == array.tobytes()
    with pytest.raises(ValueError, match="contiguous"):
        RDMABuffer(array[:, 1])
    array.flags.writeable = False
    assert not RDMABuffer(array).is_writable
    with pytest.raises(RDMAReadOnlyError):
        RDMABuffer(bytearray(800)).read_into(array)


def test_an_object_with_only_dlpack_support() -> None:
    array = np.arange(24, dtype="f4").reshape(2, 3, 4)
    buffer = RDMABuffer(OnlyDLPack(array))
    assert bytes_of(buffer) == array.tobytes()
    buffer.write_from(bytes(96)).get()
    assert not array.any()
    other = np.ones(24, dtype="f4")
    buffer.read_into(OnlyDLPack(other)).get()
    assert not other.any()
    with pytest.raises(ValueError, match="contiguous"):
        RDMABuffer(OnlyDLPack(array[:, 1]))


def test_torch_tensors_and_their_views() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(60, dtype=torch.bfloat16).reshape(3, 4, 5)
    raw = tensor.clone().view(torch.uint8).numpy().tobytes()
    buffer = RDMABuffer(tensor)
    assert bytes_of(buffer) == raw
    part = tensor[1]
    assert bytes_of(RDMABuffer(part)) == raw[40:80]
    turned = tensor.transpose(0, 2)
    other = torch.zeros(5, 4, 3, dtype=torch.bfloat16).transpose(0, 2)
    assert bytes_of(RDMABuffer(turned)) == raw
    RDMABuffer(tensor).read_into(other.transpose(0, 2).contiguous()).get()
    with pytest.raises(ValueError, match="contiguous"):
        RDMABuffer(tensor[:, 1])
    weight = torch.nn.Parameter(torch.ones(7))
    RDMABuffer(torch.arange(7.0)).read_into(weight).get()
    assert weight.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    whole = torch.empty(16, dtype=torch.uint8)
    buffer = RDMABuffer(whole[3:9])
    del part, turned, tensor
    buffer.write_from(b"abcdef").get()
    assert whole[3:9].tolist() == list(b"abcdef")


def test_torch_memory_lives_as_long_as_its_buffer() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.full((1 << 20,), 7, dtype=torch.uint8)
    buffer = RDMABuffer(tensor[1:])
    del tensor
    torch.zeros(1 << 20, dtype=torch.uint8)
    assert bytes_of(buffer) == b"\7" * ((1 << 20) - 1)


def test_the_package_does_not_import_numpy_or_torch() -> None:
    program = (
        "import sys, mesh_rdma; mesh_rdma.RDMABuffer(bytearray(8));"
        "print({'numpy', 'torch', 'ctypes'} & {*sys.modules})"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() in ("set()", "{'ctypes'}")
