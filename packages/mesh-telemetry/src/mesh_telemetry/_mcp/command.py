"""The command `mesh mcp`, which serves the tools to a coding agent."""

from __future__ import annotations

import functools
import importlib.util
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from mesh_telemetry._errors import TelemetryError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["mcp"]

_INSTRUCTIONS = (
    "Inspects running Mesh programs (distributed Python) of this user on this machine, and changes "
    "nothing. If a program hangs, call `why`; if something failed, query `failures`, then `logs`."
)


def mcp() -> None:
    """Serve read-only tools to a coding agent: SQL, stacks, logs, hangs and saved failures.

    The agent starts this command and talks to it over standard input and output, by the Model
    Context Protocol. The tools reach programs of this user on this machine that serve telemetry,
    with their read tokens, which permit no change.
    """
    if importlib.util.find_spec("mcp") is None:
        raise TelemetryError(
            "mesh mcp needs the package mcp: pip install 'torchmesh-telemetry[mcp]'"
        )
    # An optional dependency, which takes a second to import.
    from mcp.server.mcpserver import MCPServer  # noqa: PLC0415
    from mcp.types import ToolAnnotations  # noqa: PLC0415

    from mesh_telemetry._mcp.tools import TOOLS  # noqa: PLC0415

    server: MCPServer[None] = MCPServer(
        "mesh",
        version=version("torchmesh-telemetry"),
        instructions=_INSTRUCTIONS,
        log_level="WARNING",
    )
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    for tool in TOOLS:
        server.add_tool(_with_readable_errors(tool), annotations=reads)
    server.run()


def _with_readable_errors(tool: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool whose errors reach the model; the server hides the text of unknown ones."""
    from mcp.server.mcpserver.exceptions import ToolError  # noqa: PLC0415

    @functools.wraps(tool)
    def checked(**arguments: Any) -> Any:
        try:
            return tool(**arguments)
        except TelemetryError as error:
            raise ToolError(str(error)) from error

    return checked
