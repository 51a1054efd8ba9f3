"""The global random number generators of a process: their states as plain data."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["random_states", "restore_random_states"]


def random_states() -> dict[str, Any]:
    """Return the states of the generators of the modules that the process has imported."""
    states: dict[str, Any] = {}
    random: Any = sys.modules.get("random")
    if random is not None:
        version, words, gauss = random.getstate()
        states["random"] = [version, list(words), gauss]
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and hasattr(numpy, "get_state"):
        name, keys, position, has_gauss, cached = numpy.get_state()
        states["numpy"] = [str(name), keys.tolist(), position, has_gauss, cached]
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes().hex()
    return states


def restore_random_states(states: dict[str, Any]) -> None:
    """Set the generators of the modules that this process has imported to recorded states."""
    random: Any = sys.modules.get("random")
    if random is not None and "random" in states:
        version, words, gauss = states["random"]
        random.setstate((version, tuple(words), gauss))
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        name, keys, *rest = states["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))
    torch: Any = sys.modules.get("torch")
    if torch is not None and "torch" in states:
        saved = bytearray.fromhex(states["torch"])
        torch.set_rng_state(torch.frombuffer(saved, dtype=torch.uint8))
