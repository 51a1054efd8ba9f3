"""The kernel of the machine: a Debian package, unpacked into the cache and never installed."""

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

#: Packages that depend on the newest kernel with soft-RoCE; the first that apt knows is used. The
#: `cloud` kernels lack soft-RoCE and 9p.
NAMES = ("linux-image-6.12-amd64", "linux-image-amd64")

#: Modules to load, in addition to their dependencies. crc32_generic is not listed as a dependency
#: of soft-RoCE, but without it a device cannot be created: "No such file".
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

#: The folders of the package that contain these modules and their dependencies.
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

#: Common prefix of the lists of modules, which depmod requires.
LISTS = "modules."


@dataclass(frozen=True)
class Kernel:
    """A kernel that can be booted."""

    folder: Path

    @property
    def image(self) -> Path:
        """The kernel image for a boot loader."""
        return self.folder / "vmlinuz"

    @property
    def modules(self) -> list[Path]:
        """The modules, each after its dependencies."""
        return sorted((self.folder / "modules").iterdir())


def ensure(cache: Path) -> Kernel:
    """Return the kernel in the cache, after downloading it if necessary.

    Raises:
        Impossible: This machine has no such kernel, or it cannot be downloaded.
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
    """Create the folder of a kernel, named `ready`, inside a temporary folder."""
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
    """Download the package into a folder."""
    if not shutil.which("apt-get"):
        raise Impossible("the kernel of the machine is a package of Debian: there is no apt-get")
    name = _package()
    print(f"downloading {name}", file=sys.stderr, flush=True)
    if _apt("apt-get", "--quiet=2", "download", name, folder=folder) is None:
        # The package lists name a version that was removed when a newer one was published.
        subprocess.run(["apt-get", "--quiet=2", "update"], check=False)
        name = _package()
        if _apt("apt-get", "--quiet=2", "download", name, folder=folder) is None:
            raise Impossible(f"{name} cannot be downloaded: see what apt-get says above")
    (path,) = folder.glob("*.deb")
    return path


def _package() -> str:
    """Return the package on which one of those names currently depends."""
    for name in NAMES:
        for line in (_apt("apt-cache", "depends", name) or "").splitlines():
            relation, _, package = line.strip().partition(" ")
            if relation == "Depends:" and package.startswith("linux-image-"):
                return package
    raise Impossible(f"apt knows none of {', '.join(NAMES)}: run apt-get update on Debian 12 or 13")


def _apt(*command: str, folder: Path | None = None) -> str | None:
    """Return the output of an apt command, or None if it fails."""
    environment = {**os.environ, "LC_ALL": "C"}
    run = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    return run.stdout if run.returncode == 0 else None


def _unpack(package: Path, folder: Path) -> None:
    """Unpack the necessary parts of a package."""
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
    """Return the modules and their dependencies, each after its dependencies."""
    _flatten(unpacked)
    (libraries,) = (unpacked / "lib/modules").iterdir()
    version = libraries.name
    programs = {name: _program(name) for name in ("depmod", "modprobe")}
    subprocess.run([programs["depmod"], "-b", str(unpacked), version], check=True)
    command = [programs["modprobe"], "-d", str(unpacked), "-S", version, "--show-depends"]
    command += ["--ignore-install", "--all"]
    listed = subprocess.run([*command, *MODULES], check=True, stdout=subprocess.PIPE, text=True)
    lines = (line.split() for line in listed.stdout.splitlines())
    # For a built-in module modprobe prints "builtin".
    return list(dict.fromkeys(Path(words[1]) for words in lines if words[0] == "insmod"))


def _flatten(unpacked: Path) -> None:
    """Move modules to the path that modprobe expects: newer packages have them in `usr/lib`."""
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
        # A concurrent run was faster.
        if not target.is_dir():
            raise
