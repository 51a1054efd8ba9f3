// Calls and spans of some actors over time, on a canvas that can be zoomed and panned.

import { debounce, h, setChildren, setText } from "./dom.js";
import { clock, duration, plural } from "./format.js";
import { LEFT, paintLanes, TOP } from "./lane_paint.js";
import { arrangedLanes, endOf, linkedCalls } from "./lanes.js";

const ACTORS_MAX = 20;
const SPAN_US_MIN = 50;
const FIRST_SPAN_US = 5e6;
const NEAR_PX = 3;
const NO_ITEMS = { actors: [], callers: {}, spans: [], calls: [], is_cut: false };

export function open(root, page, wanted) {
  let chosen = (wanted.get("actors") ?? "").split(",").filter(Boolean);
  let value = NO_ITEMS;
  let layout = arrangedLanes(value, TOP);
  let hovered;
  let view = null;
  const chips = h("div", { class: "chips", "aria-label": "Actors shown" });
  const field = h("input", { type: "search", placeholder: "Add an actor", "aria-label": "Add an actor", list: "actors-found" });
  const options = h("datalist", { id: "actors-found" });
  const follow = h("input", { type: "checkbox", checked: true });
  const found = h("span", { class: "muted" });
  const canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": "Timeline" });
  const hint = h("div", { class: "hint", hidden: true });
  const stage = h("div", { class: "panel fill stage is-scrolled" }, canvas, hint);
  const shown = h("div", { class: "note", role: "status" }, "Zoom: wheel, + and -. Pan: drag, arrow keys. Point at a call to see its caller and callees.");
  let matches = [];
  let end = () => {};
  let waiting = 0;

  const draw = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; paintLanes(canvas, stage, layout, view, hovered); }); };
  function dataRange() {
    const times = [...value.spans, ...value.calls].map((one) => one.timestamp_us);
    const last = [...value.spans, ...value.calls].reduce((most, one) => Math.max(most, one.end_us ?? 0), Math.max(...times, 0));
    if (!times.length) return { from: Date.now() * 1000 - 10e6, until: Date.now() * 1000 };
    const first = times.reduce((least, one) => Math.min(least, one), Infinity);
    return { from: first, until: Math.max(last, first + 1000) };
  }
  function show(reply) {
    value = reply;
    layout = arrangedLanes(value, TOP);
    // The items are new objects, so the hovered one is found again by its id.
    hovered = hovered && layout.bars.find((bar) => bar.kind === hovered.kind && bar.item.id === hovered.item.id);
    setText(found, `${plural(value.calls.length, "call")}, ${plural(value.spans.length, "span")}${value.is_cut ? " (the latest)" : ""}`);
    setChildren(chips, value.actors.map((actor) => h("button", { type: "button", "aria-label": `Remove ${actor.display_name}[${actor.rank}]`, onclick: () => pick(chosen.filter((id) => id !== actor.id)) }, `${actor.display_name}[${actor.rank}] ×`)));
    if (follow.checked || !view) {
      const whole = dataRange();
      const width = view ? view.until - view.from : Math.min(whole.until - whole.from, FIRST_SPAN_US);
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
      show(NO_ITEMS);
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
  addListeners({
    canvas,
    hint,
    stage,
    zoom,
    pan,
    hover(x, y) {
      hovered = view ? barAt(layout, view, stage, x, y) : undefined;
      draw();
      return hovered && { text: description(hovered, layout, value), start: positionOf(hovered.item.timestamp_us, view, stage) };
    },
  });
  const resized = new ResizeObserver(draw);
  resized.observe(stage);
  window.addEventListener("themechange", draw);
  const button = (name, label, work) => h("button", { type: "button", "aria-label": label, onclick: work }, name);
  setChildren(
    root,
    h("div", { class: "tools" }, field, options, chips, h("label", {}, follow, "Follow"), button("−", "Zoom out", () => zoom(1.6)), button("+", "Zoom in", () => zoom(0.625)), button("All", "Show the whole time range", showAll)),
    stage,
    h("div", { class: "tools" }, h("div", { class: "legend" }, h("span", {}, h("i", { class: "i-queued" }), "queued"), h("span", {}, h("i", { class: "i-call" }), "processing"), h("span", {}, h("i", { class: "i-failed" }), "✕ failed"), h("span", {}, h("i", { class: "i-span" }), "span")), shown, h("span", { class: "grow" }), found),
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

function addListeners({ canvas, hint, stage, zoom, pan, hover }) {
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
    const found = hover(event.offsetX, event.offsetY);
    hint.hidden = !found;
    if (!found) return;
    hint.textContent = found.text;
    // Arrows are at the start of a call, so the text is on the left of it, or else on the right of the pointer.
    const left = found.start - hint.offsetWidth - 12;
    hint.style.left = `${left > LEFT ? left : Math.min(event.offsetX + 40, stage.clientWidth - hint.offsetWidth)}px`;
    hint.style.top = `${event.offsetY + 24}px`;
  });
  canvas.addEventListener("pointerleave", () => {
    hint.hidden = true;
    hover(-1, -1);
  });
  canvas.addEventListener("keydown", (event) => {
    const keys = { ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), "+": () => zoom(0.625), "=": () => zoom(0.625), "-": () => zoom(1.6) };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
}

const positionOf = (us, view, stage) => LEFT + ((us - view.from) / (view.until - view.from)) * (stage.clientWidth - 28 - LEFT);

/** Returns the bar at a position of the canvas, spans before calls. */
function barAt(layout, view, stage, x, y) {
  if (x < LEFT) return undefined;
  const us_per_px = (view.until - view.from) / (stage.clientWidth - 28 - LEFT);
  const when = view.from + (x - LEFT) * us_per_px;
  const near = NEAR_PX * us_per_px;
  return layout.bars.findLast(
    (bar) => y >= bar.y && y < bar.y + bar.height + 1 && bar.item.timestamp_us - near <= when && endOf(bar.item) + near >= when,
  );
}

function description(bar, layout, value) {
  const lines = bar.kind === "call" ? [...callLines(bar.item, value), ...calleeLines(bar, layout)] : spanLines(bar.item);
  return [...lines, clock(bar.item.timestamp_us)].join("\n");
}

function calleeLines(bar, layout) {
  const { callees } = linkedCalls(layout.bars, bar);
  const names = [...new Set(callees.map((one) => one.item.endpoint))].sort();
  return callees.length ? [`calls ${names.join(", ")}: ${plural(callees.length, "message")}`] : [];
}

function spanLines(span) {
  const took = span.end_us === null ? "still running" : duration(span.end_us - span.timestamp_us);
  return [`Span ${span.name}: ${took}${span.is_error ? ", failed" : ""}`, ...(span.fields_json === "{}" ? [] : [span.fields_json])];
}

function callLines(call, value) {
  const known = value.actors.find((actor) => actor.id === call.from_actor_id);
  const caller = known ? `${known.display_name}[${known.rank}]` : value.callers[call.from_actor_id];
  const lines = [`${call.endpoint ?? "message"} from ${caller ?? (call.from_proc === "0.0" ? "the program" : `process ${call.from_proc}`)}`];
  if (!call.has_reply) return [...lines, "without a reply"];
  if (call.active_us === null) return [...lines, "queued"];
  lines.push(`queued ${duration(call.active_us - call.timestamp_us)}`);
  lines.push(call.end_us === null ? "still processing" : `${call.is_error ? "failed after" : "processed in"} ${duration(call.end_us - call.active_us)}`);
  return lines;
}
