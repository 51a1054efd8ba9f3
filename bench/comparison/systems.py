"""The systems that are compared, and the packages from which they are installed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class System:
    """A system with a driver in `bench/drivers`."""

    #: The name of its driver, and of the option with its interpreter.
    driver: str
    #: The name that readers know.
    title: str
    #: Its distribution, whose version the page states.
    distribution: str


MESH = System("mesh", "Mesh", "torchmesh-core")
OTHERS = (
    System("monarch", "Monarch", "torchmonarch"),
    System("ray", "Ray", "ray"),
    System("dask", "Dask", "distributed"),
    System("xoscar", "xoscar", "xoscar"),
    System("torchrun", "torchrun", "torch"),
)
SYSTEMS = (MESH, *OTHERS)
