"""Test support for programs that mount directories, with pytest.

Import the fixture `mount_place` into a `conftest.py` or a test module and request it by name:

    from mesh_fs.testing import mount_place

    def test_training(mount_place):
        with remotemount(this_host(), "project", mount_place / "project"):
            ...

pytest is imported only when the fixture is used.
"""

import typing as _typing

if _typing.TYPE_CHECKING:
    from mesh_fs._fixtures import mount_place as mount_place


def __getattr__(name: str) -> object:
    if name == "mount_place":
        from mesh_fs._fixtures import mount_place

        return mount_place
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "mount_place"})
