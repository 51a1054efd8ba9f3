"""Fault injection for tests of fault-tolerant training."""

from mesh_tensor._training.rank_actors import damage_checkpoints as damage_checkpoints
