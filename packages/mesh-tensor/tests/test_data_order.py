"""The samples of a step do not depend on the number of ranks."""

from __future__ import annotations

import pytest

from mesh_tensor.training import ElasticSampler

SAMPLES, BATCH = 50, 12


def batch(step: int, size: int) -> list[int]:
    sampler = ElasticSampler(SAMPLES, BATCH, seed=3)
    return [one for rank in range(size) for one in sampler.indices(step, rank, size)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 12])
def test_the_samples_of_a_step_do_not_depend_on_the_ranks(size: int) -> None:
    for step in range(9):
        assert sorted(batch(step, size)) == sorted(batch(step, 1))


def test_each_epoch_uses_each_sample_once_in_a_different_order() -> None:
    sampler = ElasticSampler(SAMPLES, BATCH, seed=3)
    epochs = [
        [one for step in range(4) for one in sampler.indices(4 * epoch + step, 0, 1)]
        for epoch in range(2)
    ]
    assert all(len(set(epoch)) == 48 for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert sampler.steps_per_epoch == 4


def test_invalid_batch_sizes_and_ranks_are_rejected() -> None:
    with pytest.raises(ValueError, match="batch_size=51 is not between 1 and 50"):
        ElasticSampler(50, 51)
    with pytest.raises(ValueError, match="rank 2 is not one of 2 ranks"):
        ElasticSampler(50, 5).indices(0, 2, 2)
