// Waits between actors, deadlocks, and the current stacks of a process.

import { stackView } from "./detail.js";
import { h, setChildren, setText, table } from "./dom.js";
import { duration, plural } from "./format.js";

const SHOWN_MAX = 300;

export function open(root, page) {
  const deadlocks = h("div", {});
  const found = h("span", { class: "muted" });
  const rows = h("div", { class: "scroll fill" });
  const stacks = stackView(page, "Refresh");
  const heading = h("h1", {}, "Stacks");
  const advice = h("p", { class: "muted" }, "Select a process in the table, or open one in the explorer.");
  stacks.button.hidden = true;
  stacks.set("", "");
  const showStacks = (host, proc) => {
    advice.hidden = true;
    setText(heading, `Stacks of process ${proc} on ${host}`);
    stacks.set(host, proc);
    stacks.button.hidden = false;
    stacks.show();
  };
  setChildren(
    root,
    h(
      "div",
      { class: "split wide" },
      h("section", { class: "panel", "aria-label": "Waits" }, h("div", { class: "tools" }, h("h1", {}, "Waiting actors"), found), deadlocks, rows),
      h("section", { class: "panel scroll", "aria-label": "Stacks" }, heading, advice, stacks.button, stacks.element),
    ),
  );
  let shown = "";
  return page.subscribe("waits", {}, (value) => {
    setText(found, value.count ? plural(value.count, "pending call") : "");
    const now = JSON.stringify([value.rows.slice(0, SHOWN_MAX), value.deadlocks]);
    // Durations always change; buttons are rebuilt only if other values have changed.
    if (now !== shown) {
      setChildren(deadlocks, value.deadlocks.map(deadlockElement));
      setChildren(rows, value.rows.length ? waitTable(value.rows.slice(0, SHOWN_MAX), showStacks) : h("p", { class: "empty" }, "No actor is waiting for a reply."));
    }
    shown = now;
    for (const cell of rows.querySelectorAll("[data-since]")) setText(cell, duration(Math.max(0, Date.now() * 1000 - Number(cell.dataset.since))));
    page.ready("stacks");
  });
}

function deadlockElement(cycle) {
  const names = [...cycle, cycle[0]];
  return h(
    "div",
    { class: "deadlock", role: "alert", "data-part": "deadlock" },
    h("strong", {}, "Deadlock: "),
    names.map((one, at) => [["", " waits for "][at] ?? ", which waits for ", h("a", { href: `#/explorer?id=${one.id}` }, one.name)]),
    ". None of them can continue.",
  );
}

function waitTable(rows, showStacks) {
  const processButton = (host, proc) => h("button", { class: "link mono", type: "button", onclick: () => showStacks(host, proc) }, proc);
  return table(
    [["Actor"], ["In"], ["Waits for"], ["Endpoint"], ["Duration", "number tight"], ["Process", "tight"], ["Callee process", "tight"]],
    rows.map((row) => [
      row.actor_id ? h("a", { href: `#/explorer?id=${row.actor_id}` }, row.name ?? row.proc) : h("span", { class: "muted" }, `process ${row.proc}`),
      row.running ?? "–",
      h("a", { href: `#/explorer?id=${row.for_actor_id}` }, row.for_name ?? row.for_proc),
      row.endpoint ?? "–",
      row.since_us === null ? "–" : h("span", { "data-since": row.since_us }, ""),
      processButton(row.host, row.proc),
      processButton(row.host, row.for_proc),
    ]),
    "Waits",
  );
}
