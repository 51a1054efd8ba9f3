// Spans and messages of some actors over time, on a canvas that can be zoomed and panned.

import { colours, debounce, h, setChildren, setText } from "./dom.js";
import { clock, duration, plural } from "./format.js";

const TRACK_HEIGHT = 46;
const LEFT = 170;
const TOP = 24;
const ACTORS_MAX = 20;
const SPAN_US_MIN = 50;

export function open(root, page, wanted) {
  let chosen = (wanted.get("actors") ?? "").split(",").filter(Boolean);
  let value = { actors: [], spans: [], messages: [] };
  let view = null;
  const chips = h("div", { class: "chips", "aria-label": "Actors shown" });
  const field = h("input", { type: "search", placeholder: "Add an actor", "aria-label": "Add an actor", list: "actors-found" });
  const options = h("datalist", { id: "actors-found" });
  const follow = h("input", { type: "checkbox", checked: true });
  const found = h("span", { class: "muted" });
  const canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": "Timeline" });
  const hint = h("div", { class: "hint", hidden: true });
  const stage = h("div", { class: "panel fill stage" }, canvas, hint);
  const shown = h("div", { class: "muted", role: "status" }, "Zoom with the mouse wheel or + and -. Pan by dragging or with the arrow keys.");
  let matches = [];
  let end = () => {};
  let waiting = 0;

  const draw = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; paint(canvas, stage, value, view); }); };
  function dataRange() {
    const times = [...value.spans, ...value.messages].map((one) => one.timestamp_us);
    const last = value.spans.reduce((most, one) => Math.max(most, one.end_us ?? 0), Math.max(...times, 0));
    if (!times.length) return { from: Date.now() * 1000 - 10e6, until: Date.now() * 1000 };
    const first = times.reduce((least, one) => Math.min(least, one), Infinity);
    return { from: first, until: Math.max(last, first + 1000) };
  }
  function show(reply) {
    value = reply;
    value.spans.reverse();
    setText(found, `${plural(value.spans.length, "span")}, ${plural(value.messages.length, "message")}${value.is_cut ? " (the latest)" : ""}`);
    setChildren(chips, value.actors.map((actor) => h("button", { type: "button", "aria-label": `Remove ${actor.display_name}[${actor.rank}]`, onclick: () => pick(chosen.filter((id) => id !== actor.id)) }, `${actor.display_name}[${actor.rank}] ×`)));
    if (follow.checked || !view) {
      const whole = dataRange();
      const width = view ? view.until - view.from : Math.min(whole.until - whole.from, 20e6);
      const until = whole.until + width * 0.02;
      view = { from: until - Math.max(width, 1000), until };
    }
    canvas.setAttribute("aria-label", `Timeline of ${plural(value.actors.length, "actor")}: ${found.textContent}`);
    draw();
    page.ready("timeline");
  }
  function start() {
    end();
    end = page.subscribe("timeline", { actors: chosen.join(",") }, show);
  }
  function pick(ids) {
    chosen = ids;
    end();
    if (!ids.length) {
      page.setArguments("timeline", {});
      show({ actors: [], spans: [], messages: [], is_cut: false });
      return;
    }
    page.setArguments("timeline", ids.length ? { actors: ids.join(",") } : {});
    start();
  }
  function zoom(factor, at = 0.5) {
    if (!view) return;
    const width = Math.max(SPAN_US_MIN, Math.min(86400e6, (view.until - view.from) * factor));
    const centre = view.from + (view.until - view.from) * at;
    view = { from: centre - width * at, until: centre + width * (1 - at) };
    follow.checked = false;
    draw();
  }
  function pan(part) {
    if (!view) return;
    const by = (view.until - view.from) * part;
    view = { from: view.from + by, until: view.until + by };
    follow.checked = false;
    draw();
  }
  function showAll() {
    const all = dataRange();
    const margin = (all.until - all.from) * 0.02;
    view = { from: all.from - margin, until: all.until + margin };
    follow.checked = false;
    draw();
  }
  async function search() {
    const exact = matches.find((one) => nameOf(one) === field.value);
    if (exact) {
      field.value = "";
      setChildren(options);
      if (!chosen.includes(exact.id)) pick([...chosen, exact.id].slice(-ACTORS_MAX));
      return;
    }
    const text = field.value.replace(/\[.*$/, "");
    const reply = text && (await page.fetch("actors", { text, limit: 30 }));
    matches = reply ? reply.rows : [];
    setChildren(options, matches.map((one) => h("option", { value: nameOf(one) })));
  }
  field.addEventListener("input", debounce(search));
  field.addEventListener("change", search);
  addListeners({ canvas, hint, stage, zoom, pan, describe: (x, y) => describeAt(value, view, stage, x, y) });
  const resized = new ResizeObserver(draw);
  resized.observe(stage);
  window.addEventListener("themechange", draw);
  const button = (name, label, work) => h("button", { type: "button", "aria-label": label, onclick: work }, name);
  setChildren(
    root,
    h("div", { class: "tools" }, field, options, chips, h("span", { class: "grow" }), h("label", {}, follow, "Follow"), button("−", "Zoom out", () => zoom(1.6)), button("+", "Zoom in", () => zoom(0.625)), button("All", "Show the whole time range", showAll)),
    stage,
    h("div", { class: "tools" }, h("div", { class: "legend" }, h("span", {}, h("i", { class: "i-span" }), "span"), h("span", {}, h("i", { class: "i-failed" }), "failed span"), h("span", {}, h("i", { class: "i-message" }), "message")), shown, h("span", { class: "grow" }), found),
  );
  if (chosen.length) start();
  else {
    // The actors are chosen once, and not again with each value.
    end = page.subscribe("timeline", {}, (first) => {
      chosen = first.actors.map((one) => one.id);
      show(first);
      if (chosen.length) start();
    });
  }
  return () => {
    end();
    resized.disconnect();
    window.removeEventListener("themechange", draw);
  };
}

const nameOf = (actor) => `${actor.display_name}[${actor.rank}] ${actor.full_name}`;

function addListeners({ canvas, hint, stage, zoom, pan, describe }) {
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const width = stage.clientWidth - LEFT;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / width);
    else zoom(Math.exp(event.deltaY / 300), Math.min(1, Math.max(0, (event.offsetX - LEFT) / width)));
  }, { passive: false });
  let last = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    last = event.offsetX;
  });
  canvas.addEventListener("pointerup", () => { last = null; });
  canvas.addEventListener("pointermove", (event) => {
    if (last !== null) {
      pan((last - event.offsetX) / (stage.clientWidth - LEFT));
      last = event.offsetX;
      return;
    }
    const text = describe(event.offsetX, event.offsetY);
    hint.hidden = !text;
    if (!text) return;
    hint.textContent = text;
    hint.style.left = `${Math.min(event.offsetX + 14, stage.clientWidth - 220)}px`;
    hint.style.top = `${event.offsetY + 16}px`;
  });
  canvas.addEventListener("pointerleave", () => { hint.hidden = true; });
  canvas.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), "+": () => zoom(0.625), "=": () => zoom(0.625), "-": () => zoom(1.6) };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

function trackIndexes(value) {
  return new Map(value.actors.map((actor, at) => [actor.id, at]));
}

/** Computes the nesting depth of each span, per actor. */
function depths(value) {
  const found = new Map();
  const ends = new Map();
  for (const span of value.spans) {
    const open = (ends.get(span.actor_id) ?? []).filter((until) => until > span.timestamp_us);
    found.set(span, Math.min(open.length, 2));
    open.push(span.end_us ?? Infinity);
    ends.set(span.actor_id, open);
  }
  return found;
}

function paint(canvas, stage, value, view) {
  if (!view || !stage.clientWidth) return;
  const ratio = window.devicePixelRatio || 1;
  const height = Math.max(TOP + value.actors.length * TRACK_HEIGHT + 6, 80);
  const width = stage.clientWidth - 28;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  canvas.style.width = `${width}px`;
  stage.style.overflowY = "auto";
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const palette = colours("line", "text", "muted", "accent", "accent-soft", "second", "bad", "panel");
  const at = (us) => LEFT + ((us - view.from) / (view.until - view.from)) * (width - LEFT);
  context.font = "12px system-ui, sans-serif";
  ruler(context, view, at, width, height, palette);
  const tracks = trackIndexes(value);
  const depth = depths(value);
  context.save();
  context.beginPath();
  context.rect(LEFT, TOP, width - LEFT, height);
  context.clip();
  for (const span of value.spans) {
    const [x, end] = [at(span.timestamp_us), at(span.end_us ?? Math.max(view.until, Date.now() * 1000))];
    if (end < LEFT || x > width) continue;
    const y = TOP + tracks.get(span.actor_id) * TRACK_HEIGHT + 4 + depth.get(span) * 10;
    context.globalAlpha = depth.get(span) ? 0.65 : 0.9;
    context.fillStyle = span.is_error ? palette.bad : palette.accent;
    context.fillRect(x, y, Math.max(1, end - x), 9);
    context.globalAlpha = 1;
  }
  context.fillStyle = palette.second;
  for (const message of value.messages) {
    const x = at(message.timestamp_us);
    if (x < LEFT || x > width) continue;
    context.fillRect(x, TOP + tracks.get(message.actor_id) * TRACK_HEIGHT + TRACK_HEIGHT - 12, 2, 8);
  }
  context.restore();
  value.actors.forEach((actor, track) => {
    const y = TOP + track * TRACK_HEIGHT;
    context.strokeStyle = palette.line;
    context.strokeRect(0, y + TRACK_HEIGHT - 0.5, width, 0);
    context.fillStyle = palette.text;
    context.fillText(fitted(context, `${actor.display_name}[${actor.rank}]`, LEFT - 16), 2, y + 18);
    context.fillStyle = palette.muted;
    context.fillText(fitted(context, `${actor.host} ${actor.proc}`, LEFT - 16), 2, y + 34);
  });
}

function ruler(context, view, at, width, height, palette) {
  const rough = (view.until - view.from) / 8;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough);
  context.fillStyle = palette.muted;
  context.strokeStyle = palette.line;
  for (let us = Math.ceil(view.from / step) * step; us < view.until; us += step) {
    const x = Math.round(at(us)) + 0.5;
    context.beginPath();
    context.moveTo(x, TOP - 6);
    context.lineTo(x, height);
    context.stroke();
    const words = step >= 1e6 ? clock(us, 0) : `${clock(us, 3)}${step < 1000 ? ` ${Math.round(us % 1000)} µs` : ""}`;
    if (x + 60 < width) context.fillText(words, x - 20, 12);
  }
}

function fitted(context, words, width) {
  if (context.measureText(words).width <= width) return words;
  let length = words.length;
  while (length > 1 && context.measureText(`${words.slice(0, length)}…`).width > width) length -= 1;
  return `${words.slice(0, length)}…`;
}

/** Describes the span or message at a position; empty if there is none. */
function describeAt(value, view, stage, x, y) {
  if (!view || x < LEFT) return "";
  const width = stage.clientWidth - 28 - LEFT;
  const track = Math.floor((y - TOP) / TRACK_HEIGHT);
  const actor = value.actors[track];
  if (!actor) return "";
  const when = view.from + ((x - LEFT) / width) * (view.until - view.from);
  const near = ((view.until - view.from) / width) * 3;
  const isMessage = (y - TOP) % TRACK_HEIGHT > TRACK_HEIGHT - 14;
  if (isMessage) {
    const message = value.messages.find((one) => one.actor_id === actor.id && Math.abs(one.timestamp_us - when) <= near);
    return message ? `message from ${message.from_proc}, ${message.bytes} bytes\n${clock(message.timestamp_us)}` : "";
  }
  const under = value.spans.filter((one) => one.actor_id === actor.id && one.timestamp_us - near <= when && (one.end_us ?? Infinity) + near >= when);
  const span = under.at(-1);
  if (!span) return "";
  const took = span.end_us === null ? "still running" : duration(span.end_us - span.timestamp_us);
  return `${span.name}: ${took}${span.is_error ? ", failed" : ""}\n${clock(span.timestamp_us)}${span.fields_json === "{}" ? "" : `\n${span.fields_json}`}`;
}
