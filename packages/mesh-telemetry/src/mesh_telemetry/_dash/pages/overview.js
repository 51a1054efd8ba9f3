// The overview: counts, activity, failures and hosts.

import { chart } from "./chart.js";
import { h, put, say, table, tag } from "./dom.js";
import { bytes, clock, count, plural, short } from "./words.js";

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
    messages: chart("Messages received", "a second"),
    spans: chart("Spans begun", "a second"),
    logs: chart("Lines printed", "a second"),
  };
  const failures = h("div", { id: "failures" });
  const hosts = h("div", {});
  put(
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
  const counted = (value, coverage) => {
    const answered = coverage.asked.length - coverage.failed.length;
    const silent = coverage.failed.length;
    cards.hosts.show(count(answered), silent ? `of ${coverage.asked.length}: ${plural(silent, "host")} silent` : "all answer", silent ? "bad" : "");
    cards.procs.show(count(value.procs), value.procs_dead ? `${count(value.procs_dead)} have ended` : "alive");
    cards.actors.show(count(value.actors), ended(value));
    page.ready("overview");
  };
  const all = (value, coverage) => {
    counted(value, coverage);
    cards.rate.show(short(value.activity.messages.at(-1)), `${short(sum(value.activity.messages))} in a minute`);
    cards.failures.show(count(value.failure_count), value.failure_count ? "see below" : "none", value.failure_count ? "bad" : "");
    cards.waits.show(count(value.waits), value.waits ? "answers are missing" : "nobody waits", value.waits ? "warn" : "");
    for (const [name, one] of Object.entries(charts)) one.show(value.activity[name]);
    put(hosts, hostTable(value.hosts, coverage));
    // An unchanged list is not rebuilt, so that the selection is kept.
    const now = JSON.stringify(value.failures);
    if (now !== shown) put(failures, failureTable(value.failures));
    shown = now;
  };
  page.ask("counts", {}, counted).then(() => {
    if (page.isOpen()) end = page.live("overview", {}, all);
  });
  return () => end();
}

function card(name, address) {
  const value = h("div", { class: "value" }, "–");
  const more = h("div", { class: "more" });
  const element = h("a", { class: "card", href: address, "data-card": name }, h("div", { class: "name" }, name), value, more);
  return {
    element,
    show(text, words, mood = "") {
      say(value, text);
      say(more, words);
      element.className = mood ? `card is-${mood}` : "card";
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
  if (!rows.length) return h("p", { class: "empty" }, "Nothing has failed.");
  return table(
    [["When", "tight"], ["What", "tight"], ["Why"]],
    rows.map((row) => [
      clock(row.timestamp_us, 0),
      [tag(row.kind), " ", row.mesh, row.kind === "host" ? "" : `[${row.rank}]`],
      [
        h("div", {}, row.reason ?? "it is not known"),
        row.cause ? h("div", { class: "muted" }, "after ", row.cause) : null,
      ],
    ]),
    "Failures",
  );
}

function hostTable(rows, coverage) {
  const lost = coverage.failed.map((one) => [
    h("span", { class: "bad" }, one.host),
    h("span", { class: "bad" }, "does not answer: ", one.cause),
    "",
    "",
  ]);
  return table(
    [["Host"], ["Load", "number"], ["Memory free", "number"], ["GPUs", "number"]],
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
