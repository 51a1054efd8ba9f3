"""The way in: `python3 -m tools test`, `python3 -m tools run examples/train_digits.py`.

Needs Python 3.11 and a Rust toolchain. All else is installed into a cache outside the tree
(`$MESH_CACHE`, or `mesh-dev` in the user's cache folder), so a second run starts warm.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

from tools import pins, plan, toolbox, wheels
from tools.workspace import PACKAGES, ROOT, clone_folder, package


@dataclass(frozen=True)
class Command:
    """One word after `python3 -m tools`."""

    name: str
    summary: str
    act: Callable[[list[str]], int]


def main(argv: list[str]) -> int:
    """Does what the command line says, and returns the exit status."""
    commands = {command.name: command for command in COMMANDS}
    if not argv or argv[0] not in commands:
        print(_usage(), file=sys.stderr)
        return 2
    os.environ.update(toolbox.environment())
    # Jobs run in sessions of their own: they end only if this process lives to end them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A shell that runs this in the background has these ignored, and every program would inherit
    # that, those too that are to show how they end on Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        toolbox.ensure()
        return commands[argv[0]].act(argv[1:])
    except (toolbox.ToolMissing, LookupError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd[0]} failed with status {error.returncode}", file=sys.stderr)
        return 1


def _usage() -> str:
    width = max(len(command.name) for command in COMMANDS)
    lines = [f"  {command.name:<{width}}  {command.summary}" for command in COMMANDS]
    return "\n".join(["usage: python3 -m tools COMMAND ...", "", *lines])


def _test(_: list[str]) -> int:
    return plan.run(plan.STAGES)


def _run(script: list[str]) -> int:
    uv, folder = toolbox.program("uv"), clone_folder() / "run"
    subprocess.run([uv, "venv", "--quiet", "--allow-existing", str(folder)], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", str(folder)]
    group = ["--group", f"{ROOT / 'pyproject.toml'}:examples"]
    subprocess.run([*install, str(wheels.wheel(package("mesh-core"))), *group], check=True)
    python = str(folder / "bin" / "python")
    sys.stdout.flush()
    os.execv(python, [python, *script])


def _nox(args: list[str]) -> int:
    return subprocess.run(plan.nox_command(args)).returncode


def _wheels(names: list[str]) -> int:
    for name in names or PACKAGES:
        print(wheels.wheel(package(name)), flush=True)
    return 0


def _pins(_: list[str]) -> int:
    pins.write_pins()
    return 0


COMMANDS = (
    Command("run", "run a script with Mesh and with what the examples need", _run),
    Command("test", "run every check, side by side where they do not disturb each other", _test),
    Command("nox", "run nox, with the pinned tools: `nox -l` is the menu", _nox),
    Command("wheels", "build wheels and print their paths", _wheels),
    Command("pins", "resolve anew which versions the sessions install", _pins),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
