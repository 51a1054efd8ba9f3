"""Test support for programs that mount directories, with pytest.

Import the fixture `mount_place` into a `conftest.py` or a test module and request it by name:

    from mesh_fs.testing import mount_place

    def test_training(mount_place):
        with remotemount(this_host(), "project", mount_place / "project"):
            ...

The module has the fixture only if pytest is installed.
"""

try:
    from mesh_fs._fixtures import mount_place as mount_place
except ModuleNotFoundError as _error:
    if _error.name != "pytest":
        raise
