"""The machine: QEMU without hardware virtualization, and its serial lines."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rdma.vm import archive
from tests.rdma.vm.impossible import Impossible
from tests.rdma.vm.job import Job
from tests.rdma.vm.kernel import Kernel

HERE = Path(__file__).parent

#: Folders of the initial root file system of the machine.
FOLDERS = ("bin", "dev", "host", "modules", "own", "proc", "root", "sys")

MEMORY_MIB = 2048
CORES = 2

#: Additional seconds after the limit until the machine stops on its own.
OVERTIME_S = 60

#: The last line that init.sh prints.
ENDED = re.compile(r"^machine: ended with (\d+)", re.MULTILINE)

#: Exit status of `timeout` for a command that took too long.
TOOK_TOO_LONG = 124

#: Number of console lines in an error message.
LAST_LINES = 30


class NotEnded(Exception):
    """The machine stopped before its job ended; the message contains its last output."""


def run(kernel: Kernel, job: Job, limit_s: float) -> int:
    """Run a job in a separate machine and forward its output.

    Returns the exit status of the job, or `TOOK_TOO_LONG`.

    Raises:
        Impossible: QEMU is not installed.
        NotEnded: The machine stopped before the job ended.
    """
    with tempfile.TemporaryDirectory(prefix="mesh-vm-") as name:
        folder = Path(name)
        console, files = folder / "console", folder / "files"
        files.write_bytes(first_files(kernel, job, limit_s))
        with _started(command(kernel, files, console), limit_s) as (machine, is_late):
            assert machine.stdout
            while output := os.read(machine.stdout.fileno(), 65536):
                sys.stdout.buffer.write(output)
                sys.stdout.buffer.flush()
        said = console.read_text(errors="replace") if console.exists() else ""
    if ended := ENDED.search(said):
        return int(ended.group(1))
    if is_late.is_set():
        print(f"stopped after {limit_s:.0f} s: give it a longer --limit", file=sys.stderr)
        return TOOK_TOO_LONG
    raise NotEnded("\n".join(said.splitlines()[-LAST_LINES:]))


def first_files(kernel: Kernel, job: Job, limit_s: float) -> bytes:
    """Return the archive with the initial files of the machine."""
    entries = [archive.folder(name) for name in FOLDERS]
    entries.append(archive.program("init", (HERE / "init.sh").read_bytes()))
    entries.append(archive.program("devices", (HERE / "devices.sh").read_bytes()))
    entries.append(archive.program("bin/busybox", _busybox()))
    entries.append(archive.program("job", job.script.encode()))
    limit = f"limit_s={int(limit_s) + OVERTIME_S}\n"
    entries.append(archive.program("limit", limit.encode()))
    for module in kernel.modules:
        entries.append(archive.program(f"modules/{module.name}", module.read_bytes()))
    return archive.pack(entries)


def command(kernel: Kernel, files: Path, console: Path) -> list[str]:
    """Return the command that starts the machine.

    Raises:
        Impossible: QEMU is not installed.
    """
    program = shutil.which("qemu-system-x86_64")
    if not program:
        raise Impossible("qemu-system-x86_64 is missing: apt-get install qemu-system-x86")
    # Never KVM: nested virtualization may fail to boot a Debian kernel.
    machine = ["-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max"]
    size = ["-smp", str(CORES), "-m", str(MEMORY_MIB)]
    bare = ["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-nic", "none"]
    lines = ["-chardev", f"file,id=console,path={console}", "-chardev", "stdio,id=job,signal=off"]
    lines += ["-serial", "chardev:console", "-serial", "chardev:job"]
    root = "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"
    shared = ["-fsdev", root, "-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]
    options = "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off nokaslr tsc=reliable"
    boot = ["-kernel", str(kernel.image), "-initrd", str(files), "-append", options]
    return [program, *machine, *size, *bare, *lines, *shared, *boot]


@contextmanager
def _started(
    command: list[str], limit_s: float
) -> Iterator[tuple[subprocess.Popen[bytes], threading.Event]]:
    """Start a command and kill it after the limit; the event is set if that happened."""
    is_late = threading.Event()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as machine:

        def stop() -> None:
            is_late.set()
            machine.kill()

        timer = threading.Timer(limit_s, stop)
        timer.start()
        try:
            yield machine, is_late
        finally:
            timer.cancel()
            machine.kill()


def _busybox() -> bytes:
    path = shutil.which("busybox")
    if not path:
        raise Impossible("busybox is missing: apt-get install busybox-static")
    program = Path(path).read_bytes()
    if b"/ld-linux" in program[:4096]:
        raise Impossible("busybox needs libraries: apt-get install busybox-static")
    return program
