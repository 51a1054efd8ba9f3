"""The controller of one proc mesh: plans, slots, the op stream and failures."""
