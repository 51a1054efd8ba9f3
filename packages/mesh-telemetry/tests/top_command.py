"""`mesh top` as a separate program that works without its entry point."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from mesh_telemetry import TelemetryError
from mesh_telemetry._top.command import top


class ProcessSocket:
    """Prints plain text."""

    def print_json(self, value: Any) -> None:
        print(json.dumps(value))

    def print_table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        for row in [columns, *rows]:
            print("\t".join(row))


def main() -> None:
    """Run the command; an error is printed as one line, with status 1."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(top)
    try:
        app(obj=ProcessSocket())
    except TelemetryError as error:
        print(f"mesh: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
