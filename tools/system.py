"""System programs that some sessions require, and the Debian packages that provide them."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tools.workspace import cache_folder

#: For the emulated hosts of tests/hosts.
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

#: For the cluster of tests/jobs/slurm.
SLURM = {
    **HOSTS,
    "munged": "munge",
    "sbatch": "slurm-client",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
}

#: For the emulated Kubernetes cluster of tests/jobs/kube.
KUBE = {"kubectl": "kubernetes-client", "openssl": "openssl", "setpriv": "util-linux"}

#: For the ssh server of the tests of jobs.
SSH = {
    "ps": "procps",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
}

#: For mounts by unprivileged users, and for compiling pyfuse3.
FUSE = {
    "fusermount3": "fuse3",
    "gcc": "gcc",
    "mount": "mount",
    "pkg-config": "pkg-config",
    "/usr/include/fuse3/fuse.h": "libfuse3-dev",
}

#: A terminal whose screen tests can read.
TERMINAL = {"tmux": "tmux"}

#: For the benchmarks of mounts: the peer's mounts, emulated hosts, and rsync as a baseline.
MOUNTS = {**HOSTS, "fusermount3": "fuse3", "rsync": "rsync"}

#: For the tests of the dashboard.
BROWSER = {"chromium": "chromium"}

#: For the virtual machine of tests/rdma/vm, and for verbs inside it.
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

#: For tests/images: building images without an engine, and a base image without a registry.
IMAGES = {"buildah": "buildah", "mmdebstrap": "mmdebstrap"}

#: For compiling the targets of fuzz/: libFuzzer is written in C++.
FUZZ = {"c++": "g++"}

#: For the attacks of tests/security, which run as two users.
SECURITY = {**HOSTS, **FUSE, "setpriv": "util-linux"}

#: For all sessions of `python3 -m tools test`.
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

#: Seconds that `apt-get` waits for another program that installs packages.
APT_WAIT_S = 600

#: Folders with administration programs, which the PATH of other users often lacks.
ADMIN_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


def search_path() -> str:
    """Return PATH including the folders with administration programs."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    more = [folder for folder in ADMIN_FOLDERS if folder not in folders]
    return os.pathsep.join([*folders, *more])


def missing(programs: dict[str, str]) -> list[str]:
    """Return the packages of those programs, or files given by path, that do not exist."""
    path = search_path()

    def is_there(name: str) -> bool:
        return os.path.exists(name) if os.path.isabs(name) else bool(shutil.which(name, path=path))

    return sorted({package for name, package in programs.items() if not is_there(name)})


def ensure(programs: dict[str, str]) -> list[str]:
    """Install the missing packages, if that requires no password.

    Concurrent sessions wait for each other: `apt-get` fails while another process holds its lock.

    Returns:
        The packages that are still missing.
    """
    if not missing(programs):
        return []
    with _installing():
        packages = missing(programs)
        if packages and (apt := _apt()):
            print(f"installing {' '.join(packages)}", file=sys.stderr, flush=True)
            # The lists may be missing or old. If the update fails, the present ones may be
            # sufficient.
            subprocess.run([*apt, "update", "--quiet=2"])
            install = ["install", "--quiet=2", "--yes", "--no-install-recommends"]
            install.append(f"--option=DPkg::Lock::Timeout={APT_WAIT_S}")
            subprocess.run([*apt, *install, *packages])
    return missing(programs)


@contextmanager
def _installing() -> Iterator[None]:
    """Hold the lock of this user's installations."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with open(cache_folder() / "system.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _apt() -> Sequence[str] | None:
    """Return the command that installs packages, or None without the permission to install."""
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
