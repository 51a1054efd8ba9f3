"""The dashboard in a browser shows the correct state of the program."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shown_program import (
    EVIL,
    ShownProgram,
    browser,
    page_of,
    point_at_call,
    ready,
    show,
    wait_for_quiet,
)

from mesh_core.testing import wait_until
from mesh_telemetry import Telemetry, TelemetryConfig
from mesh_telemetry._serve.serving import Serving

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def program() -> Iterator[tuple[ShownProgram, Serving]]:
    place = Path(tempfile.mkdtemp(prefix="tel-", dir="/dev/shm"))
    try:
        with Telemetry(TelemetryConfig(directory=str(place))) as telemetry:
            shown = ShownProgram()
            try:
                with telemetry.serve() as serving:
                    yield shown, serving
                    wait_for_quiet()
            finally:
                shown.close()
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="module")
def opened(program: object) -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture
def page(opened: Any, program: tuple[ShownProgram, Serving]) -> Iterator[Any]:
    with page_of(opened, program[1]) as shown:
        ready(shown, "overview")
        yield shown


def has(page: Any, words: str, within: str = "main") -> None:
    """Wait until a part of the page contains the text."""
    page.locator(within).filter(has_text=words).first.wait_for()


def test_the_overview_counts_and_names_failures_with_their_cause(page: Any) -> None:
    has(page, "15", "[data-card=Actors] .value")
    has(page, "1", "[data-card=Hosts] .value")
    has(page, "8", "[data-card=Processes] .value")
    has(page, "4", "[data-card=Failures] .value")
    has(page, "mortal[", "#failures")
    has(page, "ValueError: no gradient", "#failures")
    has(page, "the batch is gone", "#failures")


def test_the_overview_describes_the_program_its_hosts_and_its_endpoints(
    page: Any, program: tuple[ShownProgram, Serving]
) -> None:
    with pytest.raises(PermissionError):
        program[0].trainers.slice(gpus=2).refuse.call_one("not now").get()
    has(page, f"pid {os.getpid()}", "[data-part=program]")
    has(page, "running for", "[data-part=program]")
    page.get_by_role("meter", name=re.compile("^Memory of ")).first.wait_for()
    page.get_by_role("meter", name=re.compile("^CPU load of ")).first.wait_for()
    has(page, "trainers[2]", "[data-part=calls]")
    endpoint = page.locator("[data-part=endpoints] tr").filter(has_text="Trainer.refuse")
    endpoint.filter(has_text=re.compile("✕ 1$")).wait_for()
    has(page, "error: not now", "[data-part=lines]")
    # The deadlock is a wait that is longer than a second.
    page.locator("[data-card='Waits over 1 s'] .value").filter(has_text="2").wait_for()


def test_the_token_does_not_stay_in_the_address(page: Any) -> None:
    assert page.url.endswith("/#/overview")
    page.reload()
    ready(page, "overview")


def test_a_wrong_token_shows_a_form_that_accepts_the_right_one(
    opened: Any, program: tuple[ShownProgram, Serving]
) -> None:
    serving = program[1]
    context = opened.new_context()
    page = context.new_page()
    page.goto(f"{serving.url}/#token=guessed")
    ready(page, "token-form")
    has(page, "The token is missing or invalid")
    page.get_by_label("Token").fill(serving.token)
    page.keyboard.press("Enter")
    ready(page, "overview")
    context.close()


def test_the_topology_has_meshes_ranks_and_messages(page: Any) -> None:
    show(page, "topology")
    # A mesh of processes has that name, too.
    page.get_by_role("option").filter(has_text="mortal").filter(has_text="Trainer").click()
    has(page, "gpus 4: 4 ranks", "[aria-label=Mesh]")
    page.wait_for_selector("canvas[aria-label='4 ranks: 4 failed']")
    page.locator("canvas").focus()
    page.keyboard.press("ArrowRight")
    has(page, "mortal[0]", "[aria-label=Mesh]")
    page.get_by_role("button", name="Graph").click()
    page.get_by_role("button", name="trainers: Trainer, 4 ranks").wait_for()
    page.get_by_role("button", name="team: 4 processes").wait_for()
    assert passed_nodes(page) == []
    sent = page.locator("svg.graph path.sent title").all_text_contents()
    assert any(int(words.split()[0]) >= 20 for words in sent), sent


def test_the_explorer_navigates_from_hosts_to_actors(page: Any) -> None:
    show(page, "explorer")
    page.get_by_role("option").filter(has_text="team[2]").click()
    page.get_by_role("option").filter(has_text="trainers[2]").click()
    has(page, "step", "[aria-label=Spans]")
    has(page, '{"number":4}', "[aria-label=Spans]")
    has(page, "running", "[aria-label=States]")
    page.get_by_role("button", name="Stacks of its process").click()
    has(page, "only in Mesh and Python", "[data-part=stacks]")
    page.get_by_label("Filter actors").fill("right")
    page.get_by_role("option").filter(has_text="right[0]").click()
    has(page, "It waits for left[0] to reply to name", "[aria-label=Detail]")


def test_the_timeline_has_calls_and_spans_of_actors(page: Any) -> None:
    show(page, "timeline")
    has(page, "trainers[0]", ".chips")
    page.wait_for_function(
        "() => /Timeline of .*: [1-9][0-9]* calls, [1-9][0-9]* spans/.test("
        "document.querySelector('canvas').getAttribute('aria-label'))"
    )
    page.get_by_role("button", name="Zoom in").click()
    assert not page.get_by_label("Follow").is_checked()
    page.locator(".chips button").first.click()
    page.wait_for_function("() => location.hash.startsWith('#/timeline?actors=')")


def test_a_new_line_is_shown_without_a_reload(
    page: Any, program: tuple[ShownProgram, Serving]
) -> None:
    show(page, "logs")
    page.evaluate("window.wasHere = true")
    program[0].trainers.slice(gpus=1).shout.call("a line that comes live").get()
    has(page, "a line that comes live", "[aria-label=Lines]")
    assert page.evaluate("window.wasHere")
    page.get_by_role("searchbox").fill("nobody prints this")
    has(page, "0 lines")
    page.get_by_role("searchbox").fill("")
    page.get_by_label("Severity").select_option("error")
    page.wait_for_function("() => location.hash.includes('severity=error')")


def test_sql_results_and_errors_are_shown_and_queries_are_stored(page: Any) -> None:
    show(page, "sql")
    editor = page.get_by_label("SQL", exact=True)
    editor.fill("select count(*) as n, max(id) as largest from actors")
    page.keyboard.press("Control+Enter")
    has(page, "15", "[data-part=rows]")
    # An id keeps all of its digits.
    row = page.locator("[data-part=rows] .list .row").first.text_content()
    assert re.fullmatch(r"15\d{17,20}", row), row
    has(page, "from 1 host", "[role=status]")
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert Path(download.value.path()).read_bytes().startswith(b"n,largest\r\n15,")
    editor.fill("select nothing")
    page.keyboard.press("Control+Enter")
    page.locator("pre[role=alert]").wait_for()
    show(page, "overview")
    show(page, "sql")
    assert "largest" in page.get_by_label("SQL", exact=True).input_value()


def test_a_deadlock_is_shown_with_its_actors(page: Any) -> None:
    show(page, "stacks")
    has(page, "left[0]", "[data-part=deadlock]")
    has(page, "right[0]", "[data-part=deadlock]")
    page.get_by_label("Waits").get_by_role("button").first.click()
    has(page, "Partner.", "[data-part=stacks]")


def test_names_from_the_program_are_inserted_as_text(page: Any) -> None:
    show(page, "topology")
    page.get_by_role("option").filter(has_text=EVIL).click()
    has(page, EVIL, "[aria-label=Mesh]")
    show(page, "explorer")
    page.get_by_label("Filter actors").fill("onerror")
    page.get_by_role("option").filter(has_text=EVIL).first.click()
    has(page, EVIL, "[aria-label=Detail]")
    show(page, "logs")
    has(page, EVIL, "[aria-label=Lines]")
    assert page.locator("main img").count() == 0
    assert page.title() != "taken"


def test_two_pages_share_one_query_that_stops_when_both_are_closed(
    opened: Any, program: tuple[ShownProgram, Serving]
) -> None:
    streams = program[1]._dashboard.streams
    wait_until(lambda: streams.topics == {}, LIMIT_S)
    with page_of(opened, program[1]) as one, page_of(opened, program[1]) as other:
        ready(one, "overview")
        ready(other, "overview")
        wait_until(lambda: streams.topics == {"overview?": 2, "calls?": 2}, LIMIT_S)
        show(other, "stacks")
        both = {"overview?": 1, "calls?": 1, "waits?": 1}
        wait_until(lambda: streams.topics == both, LIMIT_S)
    wait_until(lambda: streams.topics == {}, LIMIT_S)


def test_a_host_that_does_not_respond_is_shown(page: Any) -> None:
    silent = {"queried": ["here/0", "there/1"], "failed": [{"host": "there/1", "cause": "it died"}]}

    def answer(route: Any) -> None:
        said = route.fetch().json()
        route.fulfill(json=said | {"coverage": silent})

    page.route("**/topics/counts*", answer)
    page.route("**/live/*", lambda route: route.abort())
    page.reload()
    ready(page, "overview")
    has(page, "1 of 2 hosts did not reply: there/1 (it died)", "#coverage")
    has(page, "of 2: 1 host not responding", "[data-card=Hosts]")
    has(page, "the program does not respond", "#connection")


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("topology", "classes"),
        pytest.param("topology", "meshes", marks=pytest.mark.slow),
        pytest.param("explorer", "hosts", marks=pytest.mark.slow),
        ("explorer", "procs"),
        ("sql", "tables"),
    ],
)
def test_a_list_is_reloaded_after_its_query_failed(page: Any, name: str, topic: str) -> None:
    late = {"error": {"code": "failed", "message": "the query was not finished after 3 s"}}
    failed = threading.Event()

    def answer(route: Any) -> None:
        failed.set()
        route.fulfill(status=502, json=late)

    page.route(f"**/topics/{topic}?*", answer, times=1)
    show(page, name)
    content = {"topology": "trainers", "explorer": "team[2]", "sql": "sent_messages"}
    has(page, content[name])
    assert failed.is_set()


def test_tab_focuses_the_skip_link_and_the_theme_persists(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "skip"
    dark = "() => getComputedStyle(document.body).backgroundColor"
    page.get_by_role("button", name="Theme: auto").click()
    light = page.evaluate(dark)
    page.get_by_role("button", name="Theme: light").click()
    assert page.evaluate(dark) != light
    page.reload()
    page.get_by_role("button", name="Theme: dark").wait_for()


def test_a_call_on_the_timeline_names_its_caller_and_its_callees(page: Any) -> None:
    ids = actor_ids(page, "left", "right")
    show(page, "timeline", f"?actors={','.join(ids)}")
    canvas = page.locator("canvas[aria-label^='Timeline of 2 actors: ']")
    canvas.wait_for()
    page.get_by_role("button", name="Show the whole time range").click()
    assert "queued" in point_at_call(page, "name from left[0]")
    point_at_call(page, "calls name: 1 message")


def passed_nodes(page: Any) -> list[str]:
    """Return the nodes of the graph that an edge of other nodes passes over."""
    script = """() => {
        const boxes = [...document.querySelectorAll("svg.graph .node")].map((node) => {
            const { e: x, f: y } = node.transform.baseVal.consolidate().matrix;
            const size = node.querySelector("rect").getBBox();
            return { id: node.dataset.mesh, x, y, right: x + size.width, bottom: y + size.height };
        });
        const found = [];
        for (const path of document.querySelectorAll("svg.graph path.sent, svg.graph path.spawn")) {
            const length = path.getTotalLength();
            for (let at = 0; at <= length; at += 4) {
                const point = path.getPointAtLength(at);
                const { from, to } = path.dataset;
                const over = boxes.find((box) => box.id !== from && box.id !== to
                    && point.x > box.x && point.x < box.right
                    && point.y > box.y && point.y < box.bottom);
                if (over) found.push(`${from} to ${to} over ${over.id}`);
            }
        }
        return found;
    }"""
    found: list[str] = page.evaluate(script)
    return found


def actor_ids(page: Any, *names: str) -> list[str]:
    """Return the ids of actors with rank 0."""
    script = """async ([name]) => {
        const headers = { Authorization: `Bearer ${sessionStorage.getItem("mesh-token")}` };
        const reply = await fetch(`/topics/actors?text=${name}`, { headers });
        return (await reply.json()).value.rows[0].id;
    }"""
    return [page.evaluate(script, [name]) for name in names]


def test_failed_ranks_are_shown_with_a_symbol_and_their_reason(page: Any) -> None:
    show(page, "topology")
    first = page.get_by_role("option").first
    first.filter(has_text="mortal").filter(has_text="✕ 4 failures").wait_for()
    # The first mesh is selected.
    has(page, "✕4 failed", "[aria-label=Mesh] .legend")
    page.locator("canvas[aria-label='4 ranks: 4 failed']").hover(position={"x": 20, "y": 20})
    has(page, "gpus 0 (rank 0)", ".ranks .hint")
    has(page, "✕ failed", ".ranks .hint")
    has(page, "ValueError: no gradient", ".ranks .hint")
