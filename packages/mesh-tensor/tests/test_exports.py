"""The public surface of mesh-tensor: three doors, and each name behind exactly one of them."""

from collections import Counter
from types import ModuleType

import pytest

import mesh_tensor
import mesh_tensor.spi
import mesh_tensor.testing

DOORS = (mesh_tensor, mesh_tensor.spi, mesh_tensor.testing)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_door_says_what_it_is_for(door: ModuleType) -> None:
    assert door.__doc__


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_door_holds_every_name_it_offers(door: ModuleType) -> None:
    missing = [name for name in door.__all__ if not hasattr(door, name)]
    assert missing == []


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_door_offers_every_public_name_it_holds(door: ModuleType) -> None:
    held = {name for name, value in vars(door).items() if not name.startswith("_")}
    doors = {"spi", "testing"} if door is mesh_tensor else set()
    assert held - doors == set(door.__all__)


def test_each_name_has_exactly_one_door() -> None:
    counts = Counter(name for door in DOORS for name in door.__all__)
    assert [name for name, count in counts.items() if count > 1] == []
