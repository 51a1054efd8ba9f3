"""The order of the samples of a dataset, which depends on the step only."""

from __future__ import annotations

import torch

__all__ = ["ElasticSampler"]


class ElasticSampler:
    """Divides each batch of a dataset among the ranks.

    The samples of a batch depend on the number of the step and the seed only, not on the number of
    ranks or on earlier failures. Each sample is therefore used once per epoch, even if steps are
    repeated or the number of ranks changes.

    Args:
        samples: The number of samples of the dataset.
        batch_size: The number of samples of a step, of all ranks together.
        seed: Seeds the order.

    Raises:
        ValueError: A number is not positive, or a batch is larger than the dataset.
    """

    def __init__(self, samples: int, batch_size: int, *, seed: int = 0) -> None:
        if not 0 < batch_size <= samples:
            raise ValueError(
                f"batch_size={batch_size} is not between 1 and {samples}, the number of samples"
            )
        self._samples = samples
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    @property
    def steps_per_epoch(self) -> int:
        """The number of full batches of an epoch; samples that are left over are not used."""
        return self._samples // self._batch_size

    def indices(self, step: int, rank: int, size: int) -> list[int]:
        """Return the samples that a rank uses in a step.

        Args:
            step: The number of the step, from 0.
            rank: The rank.
            size: The number of ranks.
        """
        if not 0 <= rank < size:
            raise ValueError(f"rank {rank} is not one of {size} ranks")
        epoch, at = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(hash((self._seed, epoch)) & 0x7FFF_FFFF)
            self._order = torch.randperm(self._samples, generator=generator)
            self._epoch = epoch
        batch = self._order[at * self._batch_size : (at + 1) * self._batch_size]
        return batch[rank::size].tolist()
