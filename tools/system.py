"""Programs of the system that some sessions need, and the packages of Debian that bring them."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tools.workspace import cache_folder

#: What makes the hosts of tests/hosts.
HOSTS = {
    "bridge": "iproute2",
    "hostname": "hostname",
    "ip": "iproute2",
    "mount": "mount",
    "nft": "nftables",
    "ss": "iproute2",
    "tc": "iproute2",
    "unshare": "util-linux",
}

#: What makes the cluster of tests/jobs/slurm.
SLURM = {
    **HOSTS,
    "munged": "munge",
    "sbatch": "slurm-client",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
}

#: What the stand-in for a Kubernetes cluster of tests/jobs/kube calls.
KUBE = {"openssl": "openssl", "setpriv": "util-linux"}

#: What the tests of jobs log in to.
SSH = {
    "ps": "procps",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
}

#: What users without rights mount with, and what pyfuse3 is built with.
FUSE = {
    "fusermount3": "fuse3",
    "gcc": "gcc",
    "mount": "mount",
    "pkg-config": "pkg-config",
    "/usr/include/fuse3/fuse.h": "libfuse3-dev",
}

#: A terminal that tests look at.
TERMINAL = {"tmux": "tmux"}

#: What mounts are measured with: the peer's, other hosts, and another way to have files there.
MOUNTS = {**HOSTS, "fusermount3": "fuse3", "rsync": "rsync"}

#: What the tests of the dashboard look at it with.
BROWSER = {"chromium": "chromium"}

#: What the machine of tests/rdma/vm is made of, and what verbs need that run in it.
VERBS = {
    "busybox": "busybox-static",
    "depmod": "kmod",
    "ip": "iproute2",
    "modprobe": "kmod",
    "qemu-system-x86_64": "qemu-system-x86",
    "rdma": "iproute2",
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
    "/usr/lib/python3/dist-packages/pyverbs": "python3-pyverbs",
}

#: What the targets of fuzz/ are compiled with: libFuzzer is C++.
FUZZ = {"c++": "g++"}

#: What the attacks of tests/security run with, as two users.
SECURITY = {**HOSTS, **FUSE, "setpriv": "util-linux"}

#: What all sessions of `python3 -m tools test` need.
ALL = {
    **SLURM,
    **KUBE,
    **SSH,
    **TERMINAL,
    **BROWSER,
    **VERBS,
    **FUZZ,
    **SECURITY,
}

#: How long `apt-get` waits for another program that installs packages.
APT_WAIT_S = 600

#: Where programs of root are; the PATH of others often leaves them out.
ADMIN_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def search_path() -> str:
    """Returns PATH with the folders of root's programs in it."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    more = [folder for folder in ADMIN_FOLDERS if folder not in folders]
    return os.pathsep.join([*folders, *more])


def missing(programs: dict[str, str]) -> list[str]:
    """Returns the packages of those programs, or files by their path, that are not there."""
    path = search_path()

    def is_there(name: str) -> bool:
        return os.path.exists(name) if os.path.isabs(name) else bool(shutil.which(name, path=path))

    return sorted({package for name, package in programs.items() if not is_there(name)})


def ensure(programs: dict[str, str]) -> list[str]:
    """Installs the missing packages, if that needs no password.

    Sessions that run at the same time wait for each other: `apt-get` fails while another process
    holds its lock.

    Returns:
        The packages that are still missing.
    """
    if not missing(programs):
        return []
    with _installing():
        packages = missing(programs)
        if packages and (apt := _apt()):
            print(f"installing {' '.join(packages)}", file=sys.stderr, flush=True)
            # The lists may be missing or old. If they cannot be updated, the present ones may do.
            subprocess.run([*apt, "update", "--quiet=2"])
            install = ["install", "--quiet=2", "--yes", "--no-install-recommends"]
            install.append(f"--option=DPkg::Lock::Timeout={APT_WAIT_S}")
            subprocess.run([*apt, *install, *packages])
    return missing(programs)


@contextmanager
def _installing() -> Iterator[None]:
    """Holds the lock of this user's installations."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with open(cache_folder() / "system.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _apt() -> Sequence[str] | None:
    """Returns the command that installs packages, or None where we may not."""
    if not shutil.which("apt-get"):
        return None
    command = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
    if os.geteuid() == 0:
        return command
    asks_nothing = ["sudo", "--non-interactive"]
    if (
        shutil.which("sudo")
        and subprocess.run([*asks_nothing, "true"], capture_output=True).returncode == 0
    ):
        return [*asks_nothing, *command]
    return None


if __name__ == "__main__":
    ensure(ALL)
