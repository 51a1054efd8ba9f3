"""The instruction stream: compiled ops, their cache, call sites, and the effects of failures."""
