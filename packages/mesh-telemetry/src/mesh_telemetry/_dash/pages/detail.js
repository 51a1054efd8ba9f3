// Details of one actor or process, and its current stacks.

import { h, setChildren, setText, table, tag } from "./dom.js";
import { bytes, clock, count, duration, plural } from "./format.js";

/** Shows an actor with live updates; returns a function that stops them. */
export function actorDetail(side, page, id) {
  const heading = h("h1", {}, "…");
  const facts = h("dl", {});
  const stacks = stackView(page, "Stacks of its process");
  const parts = Object.fromEntries(["waits", "statuses", "spans", "messages", "logs"].map((name) => [name, h("div", {})]));
  setChildren(
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
    h("h3", {}, "Latest received messages"),
    parts.messages,
    h("h3", {}, "Latest output of its process"),
    parts.logs,
  );
  const shown = {};
  const show = (name, rows, make) => {
    const now = JSON.stringify(rows);
    if (shown[name] !== now) setChildren(parts[name], rows.length || name === "waits" ? make(rows) : h("p", { class: "empty" }, "None."));
    shown[name] = now;
  };
  side.scrollTop = 0;
  return page.subscribe("actor", { id }, (value) => {
    const actor = value.actor;
    if (!actor) {
      setText(heading, "This actor no longer exists");
      return;
    }
    setText(heading, `${actor.display_name}[${actor.rank}]`);
    stacks.set(actor.host, actor.proc);
    const words = [
      ["State", tag(value.waits.length ? "waiting" : value.statuses[0]?.new_status ?? "running")],
      ["Class", actor.class ?? "–"],
      ["Address", h("span", { class: "mono" }, actor.full_name)],
      ["Mesh", h("a", { href: `#/topology?id=${actor.mesh_id}` }, actor.display_name)],
      ["Messages", [`${count(value.message_count)} received`, ", ", h("a", { href: `#/timeline?actors=${actor.id}` }, "timeline")]],
      ["Activity", value.now ? `${value.now.actor_status}${value.now.actor_status === "processing" ? ` ${value.now.last_message_handler}` : ""}, ${plural(value.now.queue_depth, "message")} in its mailbox` : "–"],
      ["Started", `${clock(actor.timestamp_us)}${actor.incarnation ? `, after ${plural(actor.incarnation, "restart")}` : ""}`],
    ];
    setChildren(facts, words.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    show("waits", [...value.waits, ...value.awaited].map((row) => [row.call, row.actor_id]), () => waitLines(value));
    show("statuses", value.statuses, (rows) =>
      table([["Time", "tight"], ["State"], ["Reason"]], rows.map((row) => [clock(row.timestamp_us), tag(row.new_status), row.reason ?? ""]), "States"));
    show("spans", value.spans, (rows) =>
      table([["Time", "tight"], ["Span"], ["Attributes", "mono"]], rows.map((row) => [clock(row.timestamp_us), row.name, row.fields_json === "{}" ? "" : row.fields_json]), "Spans"));
    show("messages", value.messages, (rows) =>
      table([["Time", "tight"], ["Endpoint"], ["From"], ["Bytes", "number"]], rows.map((row) => [clock(row.timestamp_us), row.endpoint ?? "–", row.from_proc, count(row.bytes)]), "Messages"));
    show("logs", value.logs, (rows) =>
      table([["Time", "tight"], ["", "tight"], ["Line", "mono"]], rows.map((row) => [clock(row.timestamp_us), row.stream === "stderr" ? tag("stderr") : "", row.line]), "Lines"));
  });
}

/** Shows a process. */
export function procDetail(side, page, row) {
  const stacks = stackView(page, "Stacks");
  stacks.set(row.host, row.proc);
  const words = [
    ["State", tag(row.state)],
    ["Host", row.host],
    ["Process", h("span", { class: "mono" }, `${row.proc}, pid ${row.pid}`)],
    ["Mesh", h("a", { href: `#/topology?id=${row.mesh_id}` }, row.mesh)],
    ["Actors started", count(row.actors)],
    ["CPU time", row.cpu_s === null ? "–" : duration(Math.round(row.cpu_s * 1e6))],
    ["Memory", bytes(row.rss_bytes)],
    ["Threads", count(row.threads)],
    ["Stored events", bytes(row.kept_bytes)],
  ];
  setChildren(
    side,
    h("h1", {}, `${row.mesh}[${row.rank}]`),
    h("dl", {}, words.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    stacks.button,
    " ",
    h("a", { href: `#/logs?proc=${encodeURIComponent(row.proc)}` }, "Log lines"),
    stacks.element,
  );
  return () => {};
}

/** Creates a button that queries the stacks of a process, and the area that shows them. */
export function stackView(page, name) {
  let target = null;
  const element = h("div", { "data-part": "stacks" });
  const button = h("button", { type: "button", onclick: show }, name);
  button.style.margin = "10px 0";
  async function show() {
    button.disabled = true;
    const value = await page.fetch("stacks", target);
    button.disabled = false;
    if (value) setChildren(element, value.rows.length ? threads(value.rows) : h("p", { class: "empty" }, "The process does not respond."));
  }
  return { button, element, show, set: (host, proc) => { target = { host, proc }; } };
}

function threads(rows) {
  const found = new Map();
  for (const row of rows) found.set(row.thread_id, [...(found.get(row.thread_id) ?? []), row]);
  const [busy, idle] = [[], []];
  for (const frames of found.values()) (frames.every(isRuntimeFrame) ? idle : busy).push(threadOf(frames));
  return [
    busy.length ? busy : h("p", { class: "muted" }, "No code of the program is running."),
    idle.length ? h("details", {}, h("summary", { class: "muted" }, `${plural(idle.length, "thread")} only in Mesh and Python`), idle) : null,
  ];
}

// `<string>` is the command line with which Mesh starts a process.
const isRuntimeFrame = (frame) => /^<(string|frozen )|\/(mesh_core|mesh_telemetry|mesh_jobs|lib\/python3[^/]*)\//.test(frame.file);

/** Shows the frames of the program, and all frames on demand. */
function threadOf(frames) {
  const users = frames.filter((frame) => !isRuntimeFrame(frame));
  const hidden = frames.length - users.length;
  return h(
    "section",
    {},
    h("h3", {}, frames[0].thread || "Unnamed thread"),
    frameList(users.length ? users : frames),
    users.length && hidden ? h("details", {}, h("summary", { class: "muted" }, `All ${frames.length} frames, ${hidden} of them in Mesh and Python`), frameList(frames)) : null,
  );
}

function frameList(frames) {
  return h(
    "ol",
    { class: "frames" },
    frames.map((frame) =>
      h(
        "li",
        { class: isRuntimeFrame(frame) ? "ours" : "", title: `${frame.file}:${frame.line}` },
        h("span", { class: "mono" }, frame.function),
        h("span", { class: "file mono" }, `${frame.file.split("/").slice(-2).join("/")}:${frame.line}`),
      )),
  );
}

function waitLines(value) {
  const lines = [
    ...value.waits.map((row) => ["It waits for ", link(row.for_actor_id, row.for_name ? `${row.for_name}[${row.for_rank}]` : row.for_proc), ` to reply to ${row.endpoint ?? "a call"}, in ${row.running ?? "?"}`]),
    ...value.awaited.filter((row) => row.actor_id).map((row) => [link(row.actor_id, row.actor ?? row.proc), ` waits for its ${row.endpoint ?? "reply"}`]),
  ];
  return lines.map((line) => h("p", { class: "warn" }, line));
}

const link = (id, name) => h("a", { href: `#/explorer?id=${id}` }, name);
