"""Checkpoints in memory: a read returns the written state, or raises an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mesh_tensor._training.state_codec import check_state, decode_state, encode_state
from mesh_tensor.training import CheckpointCorrupt

STEP = 7
STATE: dict[str, Any] = {
    "weights": {"a": torch.randn(3, 5), "b": torch.arange(7, dtype=torch.int16)},
    "half": torch.randn(4, 4).to(torch.bfloat16).t(),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "flags": torch.tensor([True, False]),
    "complex": torch.randn(2, dtype=torch.complex64),
    "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "names": ["x", "y"]}],
}


def written(step: int = STEP) -> bytearray:
    encoded = encode_state(STATE)
    memory = bytearray(b"\xff" * (encoded.nbytes + 100))
    encoded.write(step, memoryview(memory))
    return memory


def read(memory: memoryview, step: int) -> dict[str, Any]:
    check_state(memory, step)
    return decode_state(memory)


def check_equal(state: dict[str, Any]) -> None:
    assert state["groups"] == STATE["groups"]
    tensors = [{**one, "groups": 0} for one in (state, STATE)]
    torch.testing.assert_close(*tensors, rtol=0, atol=0)


def test_a_state_is_read_as_it_was_written() -> None:
    state = read(memoryview(written()), STEP)
    check_equal(state)


def test_decoded_tensors_do_not_share_the_memory() -> None:
    memory = written()
    state = read(memoryview(memory), STEP)
    memory[:] = bytes(len(memory))
    check_equal(state)


def test_every_changed_byte_is_detected() -> None:
    memory = written()
    end = encode_state(STATE).nbytes
    for at in range(end):
        memory[at] ^= 0x10
        with pytest.raises(CheckpointCorrupt):
            read(memoryview(memory), STEP)
        memory[at] ^= 0x10


@pytest.mark.parametrize("length", [0, 10, 60, 200])
def test_a_truncated_checkpoint_is_rejected(length: int) -> None:
    with pytest.raises(CheckpointCorrupt):
        read(memoryview(written())[:length], STEP)


def test_a_checkpoint_of_another_step_is_not_read() -> None:
    with pytest.raises(CheckpointCorrupt, match="does not contain a checkpoint of step 8"):
        read(memoryview(written()), STEP + 1)
