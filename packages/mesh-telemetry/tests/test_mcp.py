"""A coding agent inspects a running program through `mesh mcp`, and can change nothing."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recorded_program import config

from mesh_core import Actor, configured, endpoint, this_host
from mesh_core.testing import wait_until
from mesh_telemetry import Telemetry

mcp = pytest.importorskip("mcp")

LIMIT_S = 60.0
COMMAND = "from mesh_telemetry._mcp.command import mcp; mcp()"


class Cashier(Actor):
    """Prints, fails, and waits."""

    @endpoint
    def greet(self) -> None:
        print("good morning", flush=True)

    @endpoint
    def fail(self) -> None:
        raise ValueError("the till is empty")

    @endpoint
    def wait_for_ever(self) -> None:
        threading.Event().wait()


@pytest.fixture(scope="module")
def program(shared_place: Path) -> Iterator[Telemetry]:
    """A served program with actors, one of which waits."""
    with Telemetry(config(shared_place)) as telemetry:
        procs = this_host().spawn_procs({"n": 2}, name="shop")
        cashiers: Any = procs.spawn("cashiers", Cashier)
        cashiers.greet.call().get(LIMIT_S)
        assert cashiers.slice(n=0).fail.call_one().exception(LIMIT_S) is not None
        cashiers.slice(n=1).wait_for_ever.broadcast()
        telemetry.serve()
        for sql, count in (
            ("select * from logs where line like '%morning%'", 2),
            ("select * from active_handlers where name = 'wait_for_ever'", 1),
        ):
            wait_until(lambda: len(telemetry.query(sql).table) == count, LIMIT_S)  # noqa: B023
        yield telemetry
        with configured(stop_grace_s=0.1):
            procs.stop().get(LIMIT_S)


def agent() -> Any:
    """Return a client that starts the command."""
    return mcp.Client(
        mcp.StdioServerParameters(
            command=sys.executable, args=["-c", COMMAND], env=dict(os.environ)
        )
    )


async def called(client: Any, tool: str, **arguments: Any) -> Any:
    """Return the result of a tool."""
    if tool not in ("programs", "tables"):
        arguments["pid"] = os.getpid()
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content[0].text
    found = result.structured_content
    return found["result"] if found.keys() == {"result"} else found


async def test_an_agent_sees_rows_stacks_lines_and_hangs(program: Telemetry) -> None:
    async with agent() as client:
        assert os.getpid() in [one["pid"] for one in await called(client, "programs")]
        assert "failures: Failures of actors" in await called(client, "tables")
        sql = "select mesh, rank from procs where mesh = 'shop' order by rank"
        found = await called(client, "query", sql=sql)
        assert found["rows"] == [{"mesh": "shop", "rank": 0}, {"mesh": "shop", "rank": 1}]
        stacks = await called(client, "stacks", mesh="shop")
        assert "in Cashier.wait_for_ever" in stacks
        assert "thread mesh-telemetry" not in stacks
        assert "good morning" in str(await called(client, "logs", contains="morning"))
        assert set(await called(client, "why")) == {"hangs", "slow_ranks"}
        assert "folder" in await called(client, "cases")
        # Results are short enough for a model.
        sql = "select repeat('x', 5000) as text from generate_series(1, 500)"
        found = await called(client, "query", sql=sql)
        assert (len(found["rows"]), found["rows_left_out"]) == (200, 300)
        assert found["rows"][0]["text"].endswith("x... (5000 characters)")


async def test_all_tools_are_read_only_and_errors_say_what_to_do(program: Telemetry) -> None:
    async with agent() as client:
        tools = (await client.list_tools()).tools
        assert all(tool.annotations.read_only_hint for tool in tools)
        for sql, pid, reason in (
            ("delete from procs", os.getpid(), "only read queries are supported"),
            ("select * from pyspy_local_variables", os.getpid(), "the act token"),
            ("select 1", 1, "no program with pid 1"),
        ):
            result = await client.call_tool("query", {"sql": sql, "pid": pid})
            assert result.is_error, sql
            assert reason in result.content[0].text
