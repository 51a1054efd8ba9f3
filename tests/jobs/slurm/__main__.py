"""Create a cluster and run the tests on its controller host: `python -m tests.jobs.slurm`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.jobs.slurm.cluster import SlurmCluster
from tests.jobs.slurm.possible import why_not
from tests.jobs.slurm.remote import SOCKET_VARIABLE, Switchboard
from tools.workspace import ROOT

#: Exit status of pytest if a selection of tests deselects all tests.
NONE_CHOSEN = 5


def main(options: list[str]) -> int:
    """Run the tests with these options for pytest, and return the exit status of pytest."""
    tests = str(Path(__file__).parent.relative_to(ROOT))
    command = [sys.executable, "-m", "tools.twice", tests, *options]
    if why_not():
        # The tests report the reason as the reason of a skip.
        return subprocess.run(command, cwd=ROOT).returncode
    folder = Path(tempfile.mkdtemp(prefix="mesh-slurm-"))
    (folder / "cluster").mkdir()
    try:
        with SlurmCluster(folder / "cluster", shared=[folder]) as cluster:
            socket = folder / "switchboard"
            switchboard = Switchboard(cluster, socket)
            variables = {**cluster.variables, SOCKET_VARIABLE: str(socket)}
            # A folder that all hosts see, like the home folder of a user on a cluster.
            command.append(f"--basetemp={folder / 'tests'}")
            with cluster.controller.popen(command, env=variables, cwd=ROOT) as tests_run:
                status = tests_run.wait()
            switchboard.close()
        return 0 if status == NONE_CHOSEN else status
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
