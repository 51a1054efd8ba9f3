"""Show a directory of the program on its hosts, and run a shell script there that reads it.

The mount exists inside the `with` block. It is read-only, and `refresh` shows later edits.
"""

import subprocess
import tempfile
from pathlib import Path

from mesh_core import Actor, endpoint, this_host
from mesh_fs import remotemount


class Shell(Actor):
    @endpoint
    def run(self, script: str) -> str:
        command = ["bash", "-euc", script]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as mountpoint:
    Path(source, "hello.txt").write_text("hello from the program")
    procs = this_host().spawn_procs({"gpus": 2})
    shells = procs.spawn("shells", Shell)
    with remotemount(this_host(), source, mountpoint) as files:
        for point, text in shells.run.call(f"cat {mountpoint}/hello.txt").get().items():
            print(f"rank {point.rank}: {text}")
        Path(source, "hello.txt").write_text("hello again")
        files.refresh()
        print(shells.slice(gpus=0).run.call_one(f"cat {mountpoint}/hello.txt").get())
    print("after the mount:", list(Path(mountpoint).iterdir()))

# prints:
#   rank 0: hello from the program
#   rank 1: hello from the program
#   hello again
#   after the mount: []
