// Waits between actors, deadlocks, and the current stacks of a process.

import { stackView } from "./detail.js";
import { h, put, say, table } from "./dom.js";
import { lasting, plural } from "./words.js";

const SHOWN_MAX = 300;

export function open(root, page) {
  const circles = h("div", {});
  const found = h("span", { class: "muted" });
  const rows = h("div", { class: "scroll fill" });
  const stacks = stackView(page, "Ask again");
  const heading = h("h1", {}, "Stacks");
  stacks.button.hidden = true;
  stacks.of("", "");
  const look = (host, proc) => {
    say(heading, `Stacks of process ${proc} on ${host}`);
    stacks.of(host, proc);
    stacks.button.hidden = false;
    stacks.show();
  };
  put(
    root,
    h(
      "div",
      { class: "split wide" },
      h("section", { class: "panel", "aria-label": "Waits" }, h("div", { class: "tools" }, h("h1", {}, "Waiting actors"), found), circles, rows),
      h("section", { class: "panel scroll", "aria-label": "Stacks" }, heading, h("p", { class: "muted" }, "Choose a process of a wait, or one in the explorer."), stacks.button, stacks.element),
    ),
  );
  let shown = "";
  return page.live("waits", {}, (value) => {
    say(found, value.count ? plural(value.count, "missing answer") : "");
    const now = JSON.stringify([value.rows.slice(0, SHOWN_MAX), value.circles]);
    // Durations always change; buttons are rebuilt only if other values have changed.
    if (now !== shown) {
      put(circles, value.circles.map(circleOf));
      put(rows, value.rows.length ? waitTable(value.rows.slice(0, SHOWN_MAX), look) : h("p", { class: "empty" }, "No actor waits for an answer."));
    }
    shown = now;
    for (const cell of rows.querySelectorAll("[data-since]")) say(cell, lasting(Math.max(0, Date.now() * 1000 - Number(cell.dataset.since))));
    page.ready("stacks");
  });
}

function circleOf(circle) {
  const names = [...circle, circle[0]];
  return h(
    "div",
    { class: "circle", role: "alert", "data-part": "circle" },
    h("strong", {}, "Deadlock: "),
    names.map((one, at) => [["", " waits for "][at] ?? ", which waits for ", h("a", { href: `#/explorer?id=${one.id}` }, one.name)]),
    ". None of them can continue.",
  );
}

function waitTable(rows, look) {
  const place = (host, proc) => h("button", { class: "link mono", type: "button", onclick: () => look(host, proc) }, proc);
  return table(
    [["Who"], ["In"], ["Waits for"], ["To answer"], ["Since", "number tight"], ["Process", "tight"], ["Of", "tight"]],
    rows.map((row) => [
      row.actor_id ? h("a", { href: `#/explorer?id=${row.actor_id}` }, row.name ?? row.proc) : h("span", { class: "muted" }, `process ${row.proc}`),
      row.running ?? "–",
      h("a", { href: `#/explorer?id=${row.for_actor_id}` }, row.for_name ?? row.for_proc),
      row.endpoint ?? "–",
      row.since_us === null ? "–" : h("span", { "data-since": row.since_us }, ""),
      place(row.host, row.proc),
      place(row.host, row.for_proc),
    ]),
    "Waits",
  );
}
