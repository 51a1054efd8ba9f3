// The overview: the program, its activity, endpoints, failures and hosts.

import { chart } from "./chart.js";
import { h, setChildren, setText, showChanges, table } from "./dom.js";
import { endpointTable, failedCallTable } from "./endpoints.js";
import { failureTable } from "./failures.js";
import { age, bytes, clock, count, plural, programName, short } from "./format.js";
import { meter } from "./meter.js";
import { SIGNS } from "./states.js";

export function open(root, page) {
  const cards = {
    hosts: card("Hosts", "#/explorer"),
    procs: card("Processes", "#/explorer"),
    actors: card("Actors", "#/topology"),
    rate: card("Messages per second", "#/timeline"),
    failures: card("Failures", "#failures"),
    waits: card("Waits over 1 s", "#/stacks"),
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
  const parts = Object.fromEntries(["endpoints", "hosts", "calls", "lines"].map((name) => [name, h("div", { class: "part", "data-part": name }, loading())]));
  const failures = h("div", { class: "part", id: "failures" }, loading());
  const hangs = h("div", { class: "part", "data-part": "hangs" });
  const program = h("div", { class: "program", "data-part": "program" }, h("span", { class: "muted" }, "Loading…"));
  const panel = (name, content) => h("section", { class: "panel" }, h("h2", {}, name), content);
  setChildren(
    root,
    program,
    hangs,
    h("div", { class: "cards" }, Object.values(cards).map((one) => one.element)),
    h("div", { class: "columns" }, Object.values(charts).map((one) => one.element)),
    h("div", { class: "columns two" }, panel("Endpoints, last minute", parts.endpoints), panel("Hosts", parts.hosts)),
    h("div", { class: "columns two" }, panel("Latest failures", failures), panel("Failed calls", parts.calls)),
    panel("Errors in the output, last 10 minutes", parts.lines),
  );
  // An unchanged list is not rebuilt, so that a selection of text is kept.
  const show = {
    program: showChanges(program, programLine),
    hosts: showChanges(parts.hosts, hostTable),
    failures: showChanges(failures, failureTable),
    hangs: showChanges(hangs, hangPanel),
    lines: showChanges(parts.lines, lineTable),
    endpoints: showChanges(parts.endpoints, endpointTable),
    calls: showChanges(parts.calls, failedCallTable),
  };
  const ends = [];
  let failure_count = null;
  let failed_calls = 0;
  const showFailures = () => {
    if (failure_count === null) return;
    cards.failures.show(count(failure_count), failed_calls ? plural(failed_calls, "failed call") : failure_count ? "see below" : "none", failure_count ? "bad" : "");
  };
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
    failure_count = value.failure_count;
    showFailures();
    cards.waits.show(count(value.waits), value.waits ? "pending calls" : "none", value.waits ? "warn" : "");
    for (const [name, one] of Object.entries(charts)) one.show(value.activity[name]);
    show.program(value.program);
    show.hosts(value.hosts, coverage.failed);
    show.failures(value.failures);
    show.hangs(value.hangs);
    show.lines(value.error_lines);
  };
  const showCalls = (value) => {
    failed_calls = sum(value.endpoints.map((row) => row.failures));
    showFailures();
    show.endpoints(value);
    show.calls(value.failed);
  };
  page.fetch("counts", {}, showCounts).then(() => {
    if (page.isOpen()) ends.push(page.subscribe("overview", {}, showAll), page.subscribe("calls", {}, showCalls));
  });
  return () => ends.forEach((end) => end());
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
      more.title = words;
      element.className = severity ? `card is-${severity}` : "card";
    },
  };
}

function ended(value) {
  const words = [];
  if (value.actors_failed) words.push(`${count(value.actors_failed)} failed`);
  if (value.actors_stopped) words.push(`${count(value.actors_stopped)} stopped`);
  words.push(`in ${plural(value.meshes, "mesh")}`);
  return words.join(", ");
}

function programLine(program) {
  const facts = [`pid ${program.pid ?? "–"}`, program.host && `on ${program.host}`, program.age_s !== null && `running for ${age(program.age_s)}`];
  return [h("h1", { title: program.line }, programName(program.line)), facts.filter(Boolean).map((words) => h("span", { class: "muted" }, words))];
}

function hangPanel(rows) {
  if (!rows.length) return [];
  const content = table(
    [["Since", "tight"], ["Rank", "tight"], ["Host", "tight"], ["What it does"], ["At", "mono"], ["Others wait in", "tight"]],
    rows.map((row) => [
      clock(row.timestamp_us, 0),
      h("span", { class: "bad" }, `${SIGNS.failed} ${row.mesh}[${row.rank}]`),
      row.culprit_host || "–",
      row.reason,
      // The folders of a source file are long, and rarely matter.
      row.at ? h("span", { title: row.at }, row.at.split("/").at(-1)) : "–",
      row.operation === null ? "–" : `${row.operation} #${row.sequence}`,
    ]),
    "Hangs",
  );
  return h("section", { class: "panel hangs" }, h("h2", {}, "Ranks that keep others waiting"), content);
}

function lineTable(rows) {
  if (!rows.length) return h("p", { class: "empty" }, "No line contains an error.");
  return table(
    [["Time", "tight"], ["Process", "tight"], ["Line", "mono"]],
    rows.map((row) => [clock(row.timestamp_us, 0), `${row.mesh}[${row.rank}]`, row.line]),
    "Errors in the output",
  );
}

function hostTable(rows, lost) {
  const unknown = h("span", { class: "muted" }, "–");
  return table(
    [["Host", "name"], ["CPU load"], ["Memory"], ["GPUs"]],
    [
      ...lost.map((one) => [h("span", { class: "bad" }, `${SIGNS.failed} ${one.host}`), h("span", { class: "bad" }, "not responding: ", one.cause), unknown, unknown]),
      ...rows.map((row) => {
        const used = row.memory_total_bytes - row.memory_free_bytes;
        const use = row.gpu_use_percent;
        return [
          h("span", { title: `host ${row.proc.split(".")[0]}` }, row.host),
          meter(`CPU load of ${row.host}`, row.load_1m / row.cpus, `${row.load_1m.toFixed(1)} of ${row.cpus}`),
          meter(`Memory of ${row.host}`, row.memory_total_bytes ? used / row.memory_total_bytes : null, `${bytes(used)} of ${bytes(row.memory_total_bytes)}`),
          meter(`GPUs of ${row.host}`, use === null ? null : use / 100, use === null ? (row.gpus === null ? "–" : "none") : `${Math.round(use)} % of ${row.gpus}`),
        ];
      }),
    ],
    "Hosts",
  );
}

const loading = () => h("p", { class: "empty" }, "Loading…");

const sum = (values) => values.reduce((total, value) => total + value, 0);
