"""The controller of one proc mesh: compiled ops, slots, the instruction stream and failures."""
