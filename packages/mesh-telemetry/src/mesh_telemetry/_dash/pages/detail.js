// Details of one actor or process, and its current stacks.

import { h, put, say, table, tag } from "./dom.js";
import { bytes, clock, count, lasting, plural } from "./words.js";

/** Shows an actor with live updates; returns a function that stops them. */
export function actorDetail(side, page, id) {
  const heading = h("h1", {}, "…");
  const facts = h("dl", {});
  const stacks = stackView(page, "Stacks of its process");
  const parts = Object.fromEntries(["waits", "statuses", "spans", "messages", "logs"].map((name) => [name, h("div", {})]));
  put(
    side,
    heading,
    facts,
    stacks.button,
    stacks.element,
    parts.waits,
    h("h3", {}, "Status changes"),
    parts.statuses,
    h("h3", {}, "Latest spans"),
    parts.spans,
    h("h3", {}, "Latest messages to it"),
    parts.messages,
    h("h3", {}, "Latest lines of its process"),
    parts.logs,
  );
  const shown = {};
  const show = (name, rows, make) => {
    const now = JSON.stringify(rows);
    if (shown[name] !== now) put(parts[name], rows.length || name === "waits" ? make(rows) : h("p", { class: "empty" }, "None."));
    shown[name] = now;
  };
  side.scrollTop = 0;
  return page.live("actor", { id }, (value) => {
    const actor = value.actor;
    if (!actor) {
      say(heading, "This actor is no longer known");
      return;
    }
    say(heading, `${actor.display_name}[${actor.rank}]`);
    stacks.of(actor.host, actor.proc);
    const words = [
      ["State", tag(value.waits.length ? "waiting" : value.statuses[0]?.new_status ?? "running")],
      ["Class", actor.class ?? "–"],
      ["Address", h("span", { class: "mono" }, actor.full_name)],
      ["Mesh", h("a", { href: `#/topology?id=${actor.mesh_id}` }, actor.display_name)],
      ["Messages", [`${count(value.message_count)} received`, ", ", h("a", { href: `#/timeline?actors=${actor.id}` }, "timeline")]],
      ["Now", value.now ? `${value.now.actor_status}${value.now.actor_status === "processing" ? ` ${value.now.last_message_handler}` : ""}, ${plural(value.now.queue_depth, "message")} in its mailbox` : "–"],
      ["Started", `${clock(actor.timestamp_us)}${actor.incarnation ? `, ${plural(actor.incarnation, "process")} before` : ""}`],
    ];
    put(facts, words.map(([name, said]) => [h("dt", {}, name), h("dd", {}, said)]));
    show("waits", [...value.waits, ...value.awaited].map((row) => [row.call, row.actor_id]), () => waitLines(value));
    show("statuses", value.statuses, (rows) =>
      table([["When", "tight"], ["State"], ["Why"]], rows.map((row) => [clock(row.timestamp_us), tag(row.new_status), row.reason ?? ""]), "States"));
    show("spans", value.spans, (rows) =>
      table([["When", "tight"], ["Span"], ["Attributes", "mono"]], rows.map((row) => [clock(row.timestamp_us), row.name, row.fields_json === "{}" ? "" : row.fields_json]), "Spans"));
    show("messages", value.messages, (rows) =>
      table([["When", "tight"], ["Endpoint"], ["From"], ["Bytes", "number"]], rows.map((row) => [clock(row.timestamp_us), row.endpoint ?? "–", row.from_proc, count(row.bytes)]), "Messages"));
    show("logs", value.logs, (rows) =>
      table([["When", "tight"], ["", "tight"], ["Line", "mono"]], rows.map((row) => [clock(row.timestamp_us), row.stream === "stderr" ? tag("stderr") : "", row.line]), "Lines"));
  });
}

/** Shows a process. */
export function procDetail(side, page, row) {
  const stacks = stackView(page, "Stacks");
  stacks.of(row.host, row.proc);
  const words = [
    ["State", tag(row.state)],
    ["Host", row.host],
    ["Process", h("span", { class: "mono" }, `${row.proc}, pid ${row.pid}`)],
    ["Mesh", h("a", { href: `#/topology?id=${row.mesh_id}` }, row.mesh)],
    ["Actors", `${count(row.actors)} started`],
    ["Processor", row.cpu_s === null ? "–" : lasting(Math.round(row.cpu_s * 1e6))],
    ["Memory", bytes(row.rss_bytes)],
    ["Threads", count(row.threads)],
    ["Events kept", bytes(row.kept_bytes)],
  ];
  put(
    side,
    h("h1", {}, `${row.mesh}[${row.rank}]`),
    h("dl", {}, words.map(([name, said]) => [h("dt", {}, name), h("dd", {}, said)])),
    stacks.button,
    " ",
    h("a", { href: `#/logs?proc=${encodeURIComponent(row.proc)}` }, "Its log lines"),
    stacks.element,
  );
  return () => {};
}

/** Creates a button that queries the stacks of a process, and the area that shows them. */
export function stackView(page, name) {
  let place = null;
  const element = h("div", { "data-part": "stacks" });
  const button = h("button", { type: "button", onclick: show }, name);
  button.style.margin = "10px 0";
  async function show() {
    button.disabled = true;
    const value = await page.ask("stacks", place);
    button.disabled = false;
    if (value) put(element, value.rows.length ? threads(value.rows) : h("p", { class: "empty" }, "The process does not answer."));
  }
  return { button, element, show, of: (host, proc) => { place = { host, proc }; } };
}

function threads(rows) {
  const found = new Map();
  for (const row of rows) found.set(row.thread_id, [...(found.get(row.thread_id) ?? []), row]);
  const [busy, idle] = [[], []];
  for (const frames of found.values()) (frames.every(isPlumbing) ? idle : busy).push(threadOf(frames));
  return [
    busy.length ? busy : h("p", { class: "muted" }, "No code of the program runs now."),
    idle.length ? h("details", {}, h("summary", { class: "muted" }, `${plural(idle.length, "thread")} in Mesh and Python alone`), idle) : null,
  ];
}

const isPlumbing = (frame) => /\/(mesh_core|mesh_telemetry|mesh_jobs|lib\/python3[^/]*)\//.test(frame.file);

function threadOf(frames) {
  return h(
    "section",
    {},
    h("h3", {}, frames[0].thread || "a thread"),
    h(
      "ol",
      { class: "frames" },
      frames.map((frame) =>
        h(
          "li",
          { class: isPlumbing(frame) ? "ours" : "", title: `${frame.file}:${frame.line}` },
          h("span", { class: "mono" }, frame.function),
          h("span", { class: "file mono" }, `${frame.file.split("/").slice(-2).join("/")}:${frame.line}`),
        )),
    ),
  );
}

function waitLines(value) {
  const lines = [
    ...value.waits.map((row) => ["It waits for ", link(row.for_actor_id, row.for_name ? `${row.for_name}[${row.for_rank}]` : row.for_proc), ` to answer ${row.endpoint ?? "a call"}, in ${row.running ?? "?"}`]),
    ...value.awaited.filter((row) => row.actor_id).map((row) => [link(row.actor_id, row.actor ?? row.proc), ` waits for its ${row.endpoint ?? "answer"}`]),
  ];
  return lines.map((line) => h("p", { class: "warn" }, line));
}

const link = (id, name) => h("a", { href: `#/explorer?id=${id}` }, name);
