"""The kernel of the machine: one that Debian ships, unpacked into the cache and never installed."""

from __future__ import annotations

import hashlib
import lzma
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.rdma.vm.impossible import Impossible
from tools import system

#: Packages that name the newest kernel which has soft-RoCE; the first that apt knows is taken.
#: Those called `cloud` come without soft-RoCE, and without 9p.
NAMES = ("linux-image-6.12-amd64", "linux-image-amd64")

#: What the machine loads, beside what these need in their turn. The name of crc32_generic is in no
#: list of what soft-RoCE needs, yet without it a device cannot be made: "No such file".
MODULES = (
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "dummy",
    "crc32_generic",
    "ib_uverbs",
    "rdma_rxe",
)

#: Where these and what they need lie in the package; the rest is not unpacked.
FOLDERS = (
    "arch/",
    "crypto/",
    "drivers/infiniband/",
    "drivers/net/dummy",
    "drivers/virtio/",
    "fs/",
    "lib/",
    "net/",
)

#: The names of all files that list modules begin so: depmod wants them.
LISTS = "modules."


@dataclass(frozen=True)
class Kernel:
    """A kernel that is ready to be booted."""

    folder: Path

    @property
    def image(self) -> Path:
        """What a boot loader loads."""
        return self.folder / "vmlinuz"

    @property
    def modules(self) -> list[Path]:
        """The modules, each after those that it needs."""
        return sorted((self.folder / "modules").iterdir())


def ensure(cache: Path) -> Kernel:
    """Returns the kernel in the cache, after it was brought there where it is not.

    Raises:
        Impossible: There is no such kernel for this machine, or it cannot be had.
    """
    if platform.machine() != "x86_64":
        raise Impossible(f"the kernel of the machine is one for x86_64, not {platform.machine()}")
    choice = hashlib.sha256(repr((NAMES, MODULES, FOLDERS)).encode()).hexdigest()[:12]
    kernel = Kernel(cache / f"kernel-{choice}")
    if not kernel.folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as made:
            _make(Path(made))
            _move(Path(made) / "ready", kernel.folder)
    return kernel


def _make(folder: Path) -> None:
    """Makes a kernel's folder, called `ready`, in one that is thrown away afterwards."""
    unpacked, ready = folder / "unpacked", folder / "ready"
    _unpack(_download(folder), unpacked)
    (image,) = (unpacked / "boot").glob("vmlinuz-*")
    (ready / "modules").mkdir(parents=True)
    image.rename(ready / "vmlinuz")
    for number, module in enumerate(_in_order(unpacked)):
        content = module.read_bytes()
        if module.suffix == ".xz":
            content = lzma.decompress(content)
        target = ready / "modules" / f"{number:02}-{module.name.removesuffix('.xz')}"
        target.write_bytes(content)


def _download(folder: Path) -> Path:
    """Brings the package into a folder."""
    if not shutil.which("apt-get"):
        raise Impossible("the kernel of the machine is a package of Debian: there is no apt-get")
    name = _package()
    print(f"downloading {name}", file=sys.stderr, flush=True)
    if _apt("apt-get", "--quiet=2", "download", name, folder=folder) is None:
        # What the lists of packages name is no longer there, once a newer one is.
        subprocess.run(["apt-get", "--quiet=2", "update"], check=False)
        name = _package()
        if _apt("apt-get", "--quiet=2", "download", name, folder=folder) is None:
            raise Impossible(f"{name} cannot be downloaded: see what apt-get says above")
    (path,) = folder.glob("*.deb")
    return path


def _package() -> str:
    """Returns the package that one of those names stands for now."""
    for name in NAMES:
        for line in (_apt("apt-cache", "depends", name) or "").splitlines():
            relation, _, package = line.strip().partition(" ")
            if relation == "Depends:" and package.startswith("linux-image-"):
                return package
    raise Impossible(f"apt knows none of {', '.join(NAMES)}: run apt-get update on Debian 12 or 13")


def _apt(*command: str, folder: Path | None = None) -> str | None:
    """Returns what a command of apt prints, or None where it fails."""
    environment = {**os.environ, "LC_ALL": "C"}
    run = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    return run.stdout if run.returncode == 0 else None


def _unpack(package: Path, folder: Path) -> None:
    """Unpacks what may be needed of a package."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as unpacking,
        tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive,
    ):
        for member in archive:
            path = PurePosixPath(member.name)
            content = archive.extractfile(member) if _is_wanted(path) else None
            if content:
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
    if unpacking.returncode:
        raise Impossible(f"{package.name} cannot be unpacked: dpkg-deb says why above")


def _is_wanted(path: PurePosixPath) -> bool:
    if path.name.startswith("vmlinuz-"):
        return True
    _, is_module, inner = str(path).partition("/kernel/")
    if is_module:
        return inner.startswith(FOLDERS)
    return "/lib/modules/" in f"/{path}" and path.name.startswith(LISTS)


def _in_order(unpacked: Path) -> list[Path]:
    """Returns the modules and what they need, each after what it needs."""
    _flatten(unpacked)
    (libraries,) = (unpacked / "lib/modules").iterdir()
    version = libraries.name
    programs = {name: _program(name) for name in ("depmod", "modprobe")}
    subprocess.run([programs["depmod"], "-b", str(unpacked), version], check=True)
    command = [programs["modprobe"], "-d", str(unpacked), "-S", version, "--show-depends"]
    command += ["--ignore-install", "--all"]
    listed = subprocess.run([*command, *MODULES], check=True, stdout=subprocess.PIPE, text=True)
    lines = (line.split() for line in listed.stdout.splitlines())
    # A module that is part of the kernel says "builtin".
    return list(dict.fromkeys(Path(words[1]) for words in lines if words[0] == "insmod"))


def _flatten(unpacked: Path) -> None:
    """Puts modules where modprobe looks: newer packages have them in `usr/lib`."""
    if not (unpacked / "lib").is_dir():
        (unpacked / "usr/lib").rename(unpacked / "lib")


def _program(name: str) -> str:
    path = shutil.which(name, path=system.search_path())
    if not path:
        raise Impossible(f"{name} is missing: apt-get install kmod")
    return path


def _move(made: Path, target: Path) -> None:
    try:
        made.rename(target)
    except OSError:
        # Another run was first.
        if not target.is_dir():
            raise
