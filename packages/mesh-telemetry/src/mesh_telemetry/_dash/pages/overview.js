// The overview: counts, activity, failures and hosts.

import { chart } from "./chart.js";
import { h, setChildren, setText, table, tag } from "./dom.js";
import { bytes, clock, count, plural, short } from "./format.js";

export const title = "Overview";

export function open(root, page) {
  const cards = {
    hosts: card("Hosts", "#/explorer"),
    procs: card("Processes", "#/explorer"),
    actors: card("Actors", "#/topology"),
    rate: card("Messages per second", "#/timeline"),
    failures: card("Failures", "#failures"),
    waits: card("Waits", "#/stacks"),
  };
  cards.failures.element.addEventListener("click", (event) => {
    event.preventDefault();
    failures.scrollIntoView();
  });
  const charts = {
    messages: chart("Messages received", "per second"),
    spans: chart("Spans started", "per second"),
    logs: chart("Lines printed", "per second"),
  };
  const failures = h("div", { id: "failures" });
  const hosts = h("div", {});
  setChildren(
    root,
    h("div", { class: "cards" }, Object.values(cards).map((one) => one.element)),
    h("div", { class: "columns" }, Object.values(charts).map((one) => one.element)),
    h(
      "div",
      { class: "columns two" },
      h("section", { class: "panel" }, h("h2", {}, "Latest failures"), failures),
      h("section", { class: "panel" }, h("h2", {}, "Hosts"), hosts),
    ),
  );
  let shown = "";
  let end = () => {};
  // The counts need only two queries, so they are shown before the rest.
  const showCounts = (value, coverage) => {
    const replied = coverage.queried.length - coverage.failed.length;
    const missing = coverage.failed.length;
    cards.hosts.show(count(replied), missing ? `of ${coverage.queried.length}: ${plural(missing, "host")} not responding` : "all responding", missing ? "bad" : "");
    cards.procs.show(count(value.procs), value.procs_dead ? `${count(value.procs_dead)} exited` : "alive");
    cards.actors.show(count(value.actors), ended(value));
    page.ready("overview");
  };
  const showAll = (value, coverage) => {
    showCounts(value, coverage);
    cards.rate.show(short(value.activity.messages.at(-1)), `${short(sum(value.activity.messages))} in the last minute`);
    cards.failures.show(count(value.failure_count), value.failure_count ? "see below" : "none", value.failure_count ? "bad" : "");
    cards.waits.show(count(value.waits), value.waits ? "pending calls" : "none", value.waits ? "warn" : "");
    for (const [name, one] of Object.entries(charts)) one.show(value.activity[name]);
    setChildren(hosts, hostTable(value.hosts, coverage));
    // An unchanged list is not rebuilt, so that the selection is kept.
    const now = JSON.stringify(value.failures);
    if (now !== shown) setChildren(failures, failureTable(value.failures));
    shown = now;
  };
  page.fetch("counts", {}, showCounts).then(() => {
    if (page.isOpen()) end = page.subscribe("overview", {}, showAll);
  });
  return () => end();
}

function card(name, address) {
  const value = h("div", { class: "value" }, "–");
  const more = h("div", { class: "more" });
  const element = h("a", { class: "card", href: address, "data-card": name }, h("div", { class: "name" }, name), value, more);
  return {
    element,
    show(text, words, severity = "") {
      setText(value, text);
      setText(more, words);
      element.className = severity ? `card is-${severity}` : "card";
    },
  };
}

function ended(value) {
  const words = [`in ${plural(value.meshes, "mesh")}`];
  if (value.actors_failed) words.push(`${count(value.actors_failed)} failed`);
  if (value.actors_stopped) words.push(`${count(value.actors_stopped)} stopped`);
  return words.join(", ");
}

/** Creates the list of failures, which the page of a mesh also contains. */
export function failureTable(rows) {
  if (!rows.length) return h("p", { class: "empty" }, "No failures.");
  return table(
    [["Time", "tight"], ["Object", "tight"], ["Reason"]],
    rows.map((row) => [
      clock(row.timestamp_us, 0),
      [tag(row.kind), " ", row.mesh, row.kind === "host" ? "" : `[${row.rank}]`],
      [
        h("div", {}, row.reason ?? "unknown"),
        row.cause ? h("div", { class: "muted" }, "caused by ", row.cause) : null,
      ],
    ]),
    "Failures",
  );
}

function hostTable(rows, coverage) {
  const lost = coverage.failed.map((one) => [
    h("span", { class: "bad" }, one.host),
    h("span", { class: "bad" }, "not responding: ", one.cause),
    "",
    "",
  ]);
  return table(
    [["Host"], ["Load", "number"], ["Free memory", "number"], ["GPUs", "number"]],
    [
      ...lost,
      ...rows.map((row) => [
        h("span", { title: `host ${row.proc.split(".")[0]}` }, row.host),
        `${row.load_1m.toFixed(1)} of ${row.cpus}`,
        `${bytes(row.memory_free_bytes)} of ${bytes(row.memory_total_bytes)}`,
        count(row.gpus),
      ]),
    ],
    "Hosts",
  );
}

const sum = (values) => values.reduce((total, value) => total + value, 0);
