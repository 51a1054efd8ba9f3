"""The container image runs a worker as an ordinary user, and knows whether it is healthy."""

from __future__ import annotations

import json

from mesh_core.testing import wait_until
from tests.images.conftest import BASE, IMAGE, LIMIT_S, Image

#: 150 MB, less the 75 MB of debian:bookworm-slim, which is smaller than the base of the test.
ADDED_MAX = 75_000_000
WORKER = ["python", "-m", "mesh_jobs.worker", "--mesh", "ones", "--rank", "0"]
PROGRAM = """
import os, sys
from mesh_core import Actor, attach_to_workers, endpoint

class Member(Actor):
    @endpoint
    def user(self):
        return os.getuid()

hosts = attach_to_workers([sys.argv[1]])
print(hosts.spawn_procs().spawn("members", Member).user.call_one().get(timeout=60))
"""


def test_the_image_is_small_and_its_user_is_not_root(image: Image) -> None:
    added = image.size(IMAGE) - image.size(BASE)
    print(f"the image adds {added / 1e6:.0f} MB to its base")
    assert added < ADDED_MAX
    assert image.config["User"] == "1000:1000"
    assert image.run("python", "-c", "import torch").returncode == 1


def test_the_worker_of_the_image_serves_a_program_and_is_healthy(image: Image) -> None:
    worker = image.start(*WORKER, "--listen", "tcp://127.0.0.1:0", "--health-port", "0")
    assert worker.stdout is not None
    told = json.loads(next(line for line in worker.stdout if line.startswith("{")))
    port = told["health"].rpartition(":")[2]
    check = image.config["Healthcheck"]
    assert isinstance(check, dict)
    words = [*check["Test"][1:], "--port", port]

    wait_until(lambda: image.run(*words).returncode == 0, LIMIT_S)
    assert image.run("python", "-c", PROGRAM, told["address"]).stdout == "1000\n"
    # Isolated by chroot only, containers see the processes of the machine.
    assert image.run("sh", "-c", f"kill {told['pid']}").returncode == 0
    worker.communicate(timeout=LIMIT_S)
    assert image.run(*words).returncode == 1
