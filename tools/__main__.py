"""The entry point: `python3 -m tools test`, `python3 -m tools run examples/train_digits.py`.

Requires Python 3.11 and a Rust toolchain. Everything else is installed into a cache outside the
repository (`$MESH_CACHE`, or `mesh-dev` in the user's cache folder), which later runs reuse. With
`-v` before the command, compilers and installers show their output.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tools import bytecode, imported, pins, plan, steps, toolbox, wheels
from tools.workspace import PACKAGES, ROOT, clone_folder, package


@dataclass(frozen=True)
class Command:
    """A subcommand of `python3 -m tools`."""

    name: str
    summary: str
    act: Callable[[list[str]], int]


def main(argv: list[str]) -> int:
    """Run the command line, and return the exit status."""
    commands = {command.name: command for command in COMMANDS}
    if argv[:1] == ["-v"]:
        os.environ[steps.VERBOSE] = "1"
        argv = argv[1:]
    if not argv or argv[0] not in commands:
        print(_usage(), file=sys.stderr)
        return 2
    os.environ.update(toolbox.environment())
    # Jobs run in separate sessions: they end only if this process lives to end them.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # A shell ignores these signals in background jobs, and every program would inherit that,
    # including programs that test Ctrl-C.
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
    return "\n".join(["usage: python3 -m tools [-v] COMMAND ...", "", *lines])


def _test(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tools test")
    parser.add_argument("--slow", action="store_true", help="run the slow variants instead")
    if parser.parse_args(arguments).slow:
        return plan.run(early=(), shared=plan.SLOW, waiting=(), alone=())
    return plan.run()


def _run(script: list[str]) -> int:
    if not script:
        raise LookupError("usage: python3 -m tools run SCRIPT.py [ARGUMENT ...]")
    built = [str(wheels.wheel(package(name))) for name in imported.packages_of(script)]
    python = _run_environment(built)
    sys.stdout.flush()
    os.execv(python, [python, *script])


def _run_environment(built: list[str]) -> str:
    """Install wheels and dependencies of the examples if necessary, and return the Python path."""
    uv, folder = toolbox.program("uv"), clone_folder() / "run"
    python = str(folder / "bin" / "python")
    install = [uv, "pip", "install", "--quiet", "--python", str(folder), *built]
    install += ["--group", f"{ROOT / 'pyproject.toml'}:examples"]
    # The marker is inside the environment, so that both are deleted together.
    done, wanted = folder / "installed", "\n".join([*install, toolbox.CONSTRAINTS.read_text()])
    if done.is_file() and done.read_text() == wanted:
        return python
    with steps.step("installing the script's packages", "about 1 minute the first time"):
        steps.run_quietly([uv, "venv", "--quiet", "--allow-existing", str(folder)])
        steps.run_quietly(install)
        bytecode.restore(Path(python))
    done.write_text(wanted)
    return python


def _develop(names: list[str]) -> int:
    """Install packages into `.venv` in editable mode."""
    uv, folder = toolbox.program("uv"), ROOT / ".venv"
    install = [uv, "pip", "install", "--quiet", "--python", str(folder)]
    groups = [f"--group={ROOT / 'pyproject.toml'}:{name}" for name in ("toolbox", "test")]
    wanted = [package(name) for name in names or PACKAGES]
    folders = [f"--editable={package(name).folder}" for one in wanted for name in one.siblings]
    folders += [f"--editable={one.folder}" for one in wanted]
    with steps.step(f"installing into {folder}", "compiles Rust without optimization"):
        steps.run_quietly([uv, "venv", "--quiet", "--allow-existing", str(folder)])
        steps.run_quietly([*install, *groups])
        # Without build isolation the path of the interpreter is stable, so cargo does not recompile
        # pyo3.
        build = ["--no-build-isolation", "--config-settings=build-args=--profile=dev"]
        steps.run_quietly([*install, *build, *folders])
    return 0


def _nox(args: list[str]) -> int:
    return subprocess.run(plan.nox_command(args)).returncode


def _wheels(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tools wheels")
    parser.add_argument("names", nargs="*", metavar="PACKAGE", help="default: all packages")
    parser.add_argument("--into", type=Path, help="copy the wheels into this folder")
    chosen = parser.parse_args(arguments)
    for name in chosen.names or PACKAGES:
        built = wheels.wheel(package(name))
        if chosen.into is not None:
            chosen.into.mkdir(parents=True, exist_ok=True)
            built = Path(shutil.copy(built, chosen.into))
        print(built, flush=True)
    return 0


def _pins(_: list[str]) -> int:
    pins.write_pins()
    return 0


COMMANDS = (
    Command("run", "run a script with the packages that it imports", _run),
    Command("test", "run every check, side by side where they do not disturb each other", _test),
    Command("nox", "run nox, with the pinned tools: `nox -l` lists the sessions", _nox),
    Command("develop", "install packages into .venv, editable: `develop mesh-core`", _develop),
    Command("wheels", "build wheels and print their paths: `--into dist`", _wheels),
    Command("pins", "resolve which versions the sessions install", _pins),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
