"""Writes docs/comparison.md and its picture from the ledger of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.comparison import picture
from bench.comparison.rows import COMPARED, PICTURED
from bench.comparison.systems import OTHERS, SYSTEMS, System
from bench.goals import Row, Source
from bench.results import Results
from bench.scale import FULL
from bench.table import figure

_TEXT = Path(__file__).with_name("page.md")
_PLACES = {"pinned": "one core", "plain": "all cores"}
_SCENARIOS = {
    "killed": "a worker is killed by SIGKILL during a call",
    "hung": "a call with a deadline of 3 s never returns",
    "out-of-memory": "a worker exceeds the memory limit of its cgroup",
    "host-lost": "the host of a worker loses power during a call",
}
_NOT_OFFERED = "NotOfferedError"
#: Figures that differ by less than this factor count as equal.
_EQUAL = 1.05


def write(ledger: Mapping[str, Any], folder: Path) -> None:
    """Write the page and its picture into the folder of the documentation."""
    results = Results(list(ledger["lines"]))
    parts = {
        "MACHINE": _machine(ledger),
        "SPEED": "\n".join(_speed(results, ledger)),
        "FAILURES": "\n".join(_failures(ledger)).strip(),
        "CONTROLLER": "\n".join(_controller(ledger)),
        "RECOVERIES": ledger.get("recoveries", ""),
    }
    text = _TEXT.read_text("utf-8")
    for name, part in parts.items():
        text = text.replace(f"<!-- {name} -->", part)
    (folder / "comparison.md").write_text(text, "utf-8")
    title = "Time or memory of each system, as a multiple of that of Mesh"
    drawn = picture.chart(list(_lines(results)), [one.title for one in SYSTEMS], title)
    (folder / "comparison.svg").write_text(drawn, "utf-8")


def _machine(ledger: Mapping[str, Any]) -> str:
    about = ledger["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in ledger["versions"].items())
    return (
        f"Measured on {ledger['date']}: {about['processor']}, {about['cores']} cores, "
        f"{about['memory_gib']:g} GiB, Linux {about['kernel']}, Python {about['python']}. "
        f"{versions}. Every figure is a median; rounds: {ledger['rounds']}."
    )


def _speed(results: Results, ledger: Mapping[str, Any]) -> Iterator[str]:
    titles = [one.title for one in SYSTEMS]
    yield f"| | cores | {' | '.join(titles)} | floor | Mesh and the best other |"
    yield f"| --- | --- |{' --- |' * (len(titles) + 2)}"
    why = _reasons(ledger)
    of = ""
    for row in COMPARED:
        title = row.title.strip().format(procs=FULL.procs)
        if row.title.startswith(" "):
            title = f"{of}: {title}"
        else:
            of = title.partition(",")[0]
        for placement in row.placements:
            cells = [
                _cell(
                    results, row, placement, system, why.get((system.driver, row.source.workload))
                )
                for system in SYSTEMS
            ]
            floor = results.median(row.floor, placement) if row.floor else None
            cells = [title, _PLACES[placement], *cells, figure(floor, row.unit)]
            yield f"| {' | '.join([*cells, _against_best(results, row, placement)])} |"


def _cell(results: Results, row: Row, placement: str, system: System, why: str | None) -> str:
    value = _value(results, row, placement, system)
    return why or "-" if value is None else figure(value, row.unit)


def _against_best(results: Results, row: Row, placement: str) -> str:
    ours = _value(results, row, placement, SYSTEMS[0])
    others = {one.title: _value(results, row, placement, one) for one in OTHERS}
    known = {title: value for title, value in others.items() if value is not None}
    if ours is None or not known:
        return ""
    best = max(known, key=known.__getitem__) if row.is_rate else min(known, key=known.__getitem__)
    times = ours / known[best] if row.is_rate else known[best] / ours
    factor = max(times, 1 / times)
    if factor < _EQUAL:
        return f"equal ({best})"
    kind = ("larger" if row.is_rate else "less") if times >= 1 else "**behind**"
    return f"{factor:.2g}x {kind} ({best})"


def _value(results: Results, row: Row, placement: str, system: System) -> float | None:
    return results.median(Source(row.source.workload, row.source.metric, system.driver), placement)


def _reasons(ledger: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """Return why a workload has no figure: the system does not offer it, or it failed."""
    return {
        (one["driver"], one["workload"]): "not offered"
        if _NOT_OFFERED in one["stderr"]
        else "failed"
        for one in ledger["errors"]
    }


def _lines(results: Results) -> Iterator[picture.Line]:
    for row in COMPARED:
        title = PICTURED.get((row.id, row.source.metric))
        ours = _value(results, row, row.placements[-1], SYSTEMS[0])
        if title is None or not ours:
            continue
        ratios = {}
        for system in SYSTEMS:
            value = _value(results, row, row.placements[-1], system)
            if value:
                ratios[system.title] = ours / value if row.is_rate else value / ours
        yield picture.Line(title, ratios)


def _failures(ledger: Mapping[str, Any]) -> Iterator[str]:
    for scenario, title in _SCENARIOS.items():
        yield f"### When {title}"
        yield ""
        yield "| system | after | the program sees |"
        yield "| --- | --- | --- |"
        for system in SYSTEMS:
            found = ledger["failures"].get(system.driver, {}).get(scenario)
            if found is not None:
                text = found["text"].replace("|", "\\|").replace("<", "&lt;")
                error = f"`{found['error']}`: " if found["error"] else ""
                after = _seconds(found["seconds"]) if error else "-"
                yield f"| {system.title} | {after} | {error}{text} |"
        yield ""


def _controller(ledger: Mapping[str, Any]) -> Iterator[str]:
    yield "| system | processes before | left after 1 s | after 5 s | after 15 s |"
    yield "| --- | --- | --- | --- | --- |"
    for system in SYSTEMS:
        found = ledger["failures"].get(system.driver, {}).get("controller")
        if found and found["left"]:
            left = " | ".join(str(found["left"][after]) for after in ("1", "5", "15"))
            yield f"| {system.title} | {found['processes']} | {left} |"


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"
