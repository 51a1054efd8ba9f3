"""Every installed plug-in loads, including third-party plug-ins."""

from importlib.metadata import entry_points

import pytest

GROUPS = (
    "mesh_jobs.backends",
    "mesh_jobs.extensions",
    "mesh_rdma.transports",
    "mesh_telemetry.sources",
)


@pytest.mark.parametrize("group", GROUPS)
def test_installed_plugins_load(group: str) -> None:
    for plugin in entry_points(group=group):
        assert plugin.load() is not None, f"{plugin.name} of {plugin.dist} is nothing"


@pytest.mark.parametrize("group", GROUPS)
def test_no_two_plugins_of_a_group_share_a_name(group: str) -> None:
    names = [plugin.name for plugin in entry_points(group=group)]
    assert len(names) == len(set(names))
