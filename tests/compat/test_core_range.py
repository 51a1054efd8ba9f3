"""Every package accepts the version of mesh-core in the same repository."""

from importlib.metadata import requires, version

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tools.workspace import packages

UPPER = [one.distribution for one in packages() if one.name != "mesh-core"]


def core_requirement(distribution: str) -> Requirement:
    """Return the requirement of a package on mesh-core."""
    wanted = [Requirement(line) for line in requires(distribution) or []]
    (core,) = [one for one in wanted if one.name == "torchmesh-core" and one.marker is None]
    return core


@pytest.mark.parametrize("distribution", UPPER)
def test_range_includes_the_core_of_this_tree(distribution: str) -> None:
    assert core_requirement(distribution).specifier.contains(
        version("torchmesh-core"), prereleases=True
    )


@pytest.mark.parametrize("distribution", UPPER)
def test_the_range_ends_before_the_next_incompatible_release(distribution: str) -> None:
    specifiers = {
        one.operator: Version(one.version) for one in core_requirement(distribution).specifier
    }
    oldest, end = specifiers[">="], specifiers["<"]
    # Before 1.0 a minor release may be incompatible; later only a major release may.
    following = (0, oldest.minor + 1) if oldest.major == 0 else (oldest.major + 1, 0)
    assert (end.major, end.minor) <= following
