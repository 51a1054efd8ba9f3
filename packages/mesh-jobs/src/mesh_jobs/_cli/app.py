"""The application `mesh`, with the commands of this package and of other packages."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

import typer

from mesh_jobs._cli.options import options_of_mesh
from mesh_jobs._errors import JobError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GROUP", "make_app"]

GROUP = "mesh.commands"
"""The entry points of other packages; each is a function, or a `typer.Typer` with subcommands."""

# Options after the argument belong to the program that the command runs.
_WITH_COMMAND = {"allow_interspersed_args": False}

_WITH_ANY = {"allow_extra_args": True, "ignore_unknown_options": True}

# The function of each command. Its module is imported only if the command may be executed, because
# the imports of all commands would take most of the time of a short one.
_COMMANDS = {
    "apply": "allocation:apply",
    "plan": "allocation:plan",
    "status": "allocation:status",
    "run": "batch:run",
    "exec": "execution:execute",
    "spmd": "execution:spmd",
    "shell": "remote_access:shell",
    "attach": "remote_access:attach",
    "forward": "remote_access:forward",
    "ps": "processes:ps",
    "stacks": "processes:stacks",
    "stop": "processes:stop",
    "logs": "logs:logs",
    "events": "lifecycle:events",
    "wait": "lifecycle:wait",
    "resize": "lifecycle:resize",
    "kill": "allocation:kill",
    "contexts": "allocation:contexts",
    "doctor": "doctor:doctor",
    "case": "cases:case",
    "record": "cases:record",
    "replay": "cases:replay",
    "schedules": "cases:schedules",
}
# Commands of packages that may not be installed; they name the package to install.
_ELSEWHERE = {
    **dict.fromkeys(("mount", "mounts", "sync", "umount"), "torchmesh-fs"),
    **dict.fromkeys(
        ("dash", "debug", "dump", "flame", "heap", "mcp", "profile", "query", "top", "why"),
        "torchmesh-telemetry",
    ),
}
# The extra that such a command requires in addition to its package.
_EXTRAS = {"mcp": "mcp", "top": "top"}
_RUNNING = ("run", "exec", "spmd", "shell", "attach", "forward")
_SETTINGS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(_RUNNING, _WITH_COMMAND),
    # Their options, including those for help, belong to the commands of mesh-core.
    **{
        name: {**_WITH_ANY, "help_option_names": []}
        for name in ("case", "record", "replay", "schedules")
    },
}
# The headings of the help, in this order; commands of unknown packages come last.
_PANELS = {
    **dict.fromkeys(
        ("apply", "plan", "status", "contexts", "events", "wait", "resize", "kill"), "Hosts"
    ),
    **dict.fromkeys(_RUNNING, "Programs"),
    **dict.fromkeys(("ps", "stacks", "stop", "logs", "doctor"), "Processes"),
    **dict.fromkeys(("case", "record", "replay", "schedules"), "Failures"),
    **dict.fromkeys((name for name, by in _ELSEWHERE.items() if by == "torchmesh-fs"), "Files"),
    **dict.fromkeys((name for name, by in _ELSEWHERE.items() if by != "torchmesh-fs"), "Telemetry"),
}
_OTHER_PANEL = "Other packages"
_HELP = "Get hosts from a scheduler once, and run program after program on them."


def make_app(chosen: str | None = None) -> typer.Typer:
    """Create the application.

    Args:
        chosen: The command that will be executed. If it is known, no other command is loaded.
    """
    app = typer.Typer(
        name="mesh",
        help=_HELP,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help=_HELP, invoke_without_command=True)(options_of_mesh)
    if chosen in _COMMANDS:
        _add_own(app, chosen)
        return app
    points = {point.name: point for point in entry_points(group=GROUP)}
    if chosen in points:
        _add(app, points[chosen])
        return app
    for name in _COMMANDS:
        _add_own(app, name)
    for name in sorted(points.keys() - _COMMANDS.keys()):
        _add(app, points[name])
    for name in sorted(_ELSEWHERE.keys() - points.keys()):
        app.command(name, hidden=True, context_settings=_WITH_ANY)(_missing(name))
    return app


def _add_own(app: typer.Typer, name: str) -> None:
    """Add a command of this package."""
    command = EntryPoint(name, f"mesh_jobs._cli.{_COMMANDS[name]}", GROUP).load()
    app.command(name, context_settings=_SETTINGS.get(name), rich_help_panel=_PANELS[name])(command)


def _add(app: typer.Typer, point: EntryPoint) -> None:
    """Add the command of another package; if it cannot be loaded, using it raises an error."""
    try:
        found = point.load()
    except Exception as error:
        app.command(point.name, help="Cannot be loaded.")(_broken(point, error))
        return
    panel = _PANELS.get(point.name, _OTHER_PANEL)
    if isinstance(found, typer.Typer):
        app.add_typer(found, name=point.name, rich_help_panel=panel)
    else:
        app.command(point.name, rich_help_panel=panel)(found)


def _broken(point: EntryPoint, error: Exception) -> Callable[[], None]:
    def complain() -> None:
        raise JobError(
            f"the command {point.name!r} of {point.value} cannot be loaded: "
            f"{type(error).__name__}: {error}: repair or remove the package that provides it"
        )

    return complain


def _missing(name: str) -> Callable[[], None]:
    def complain() -> None:
        package = _ELSEWHERE[name]
        wanted = f"'{package}[{_EXTRAS[name]}]'" if name in _EXTRAS else package
        raise JobError(f"mesh {name} comes with {package}: pip install {wanted}")

    return complain
