"""Copies a folder of the program to a host, and again after a change."""

import tempfile
from pathlib import Path

from mesh_core import this_host
from mesh_fs import sync_workspace

with tempfile.TemporaryDirectory() as folder:
    source, copy = Path(folder, "source"), Path(folder, "copy")
    source.mkdir()
    (source / "greeting").write_text("hello")
    sync_workspace(this_host(), source, copy)
    print((copy / "greeting").read_text())

# prints:
#   hello
