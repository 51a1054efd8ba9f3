// The ranks of a mesh on a canvas: cards with labels, or squares if there are many ranks.

import { colours, h, setChildren } from "./dom.js";
import { count, plural } from "./format.js";
import { coordinates, coordinateText, dimensions, gridLayout } from "./grid_layout.js";
import { COLOURS, SIGNS, STATES } from "./states.js";

const FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
const SIGN_SIDE_MIN = 11;
const LABEL_PX_MIN = 14;
const COLUMN_LABEL_PX_MIN = 30;

/** Creates a grid; `choose(rank)` is called when a rank is clicked, or selected by arrow keys. */
export function meshGrid(choose) {
  const canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": "Ranks" });
  const hint = h("div", { class: "hint", hidden: true });
  const element = h("div", { class: "ranks" }, canvas, hint);
  const legend = h("div", { class: "legend" });
  let mesh = null;
  let states = new Map();
  let details = new Map();
  let chosen = -1;
  let layout = { columns: 1, width: 1, height: 1, left: 0, top: 0 };

  function draw() {
    if (!mesh || !element.clientWidth) return;
    layout = gridLayout(mesh, element.clientWidth);
    const height = Math.ceil(mesh.size / layout.columns) * layout.height + layout.top + 2;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(element.clientWidth * ratio);
    canvas.height = Math.max(1, Math.round(height * ratio));
    canvas.style.height = `${height}px`;
    const paint = canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    const palette = colours(...new Set(Object.values(COLOURS)), "text", "muted", "panel");
    drawLabels(paint, palette, mesh, layout);
    for (let rank = 0; rank < mesh.size; rank += 1) {
      const state = states.get(rank) ?? "running";
      const place = placeOf(layout, rank);
      if (layout.isLabelled) drawCard(paint, palette, place, state, cardName(mesh, rank));
      else drawSquare(paint, palette, place, state);
      if (rank === chosen) outline(paint, palette, place);
    }
  }

  function rankAt(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - layout.left - 1) / layout.width);
    const rank = Math.floor((event.clientY - box.top - layout.top - 1) / layout.height) * layout.columns + column;
    return mesh && column >= 0 && column < layout.columns && rank >= 0 && rank < mesh.size ? rank : -1;
  }

  function select(rank) {
    if (!mesh || rank < 0 || rank >= mesh.size) return;
    chosen = rank;
    draw();
    choose(rank);
  }

  canvas.addEventListener("click", (event) => select(rankAt(event)));
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: layout.columns, ArrowUp: -layout.columns };
    if (!(event.key in steps)) return;
    event.preventDefault();
    select(chosen < 0 ? 0 : chosen + steps[event.key]);
  });
  canvas.addEventListener("pointermove", (event) => {
    const rank = rankAt(event);
    hint.hidden = rank < 0;
    if (rank < 0) return;
    const state = states.get(rank) ?? "running";
    hint.textContent = [`${coordinateText(coordinates(mesh, rank))} (rank ${rank})`, `${SIGNS[state]} ${state}`, ...(details.get(rank) ?? [])].join("\n");
    const box = element.getBoundingClientRect();
    hint.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 12, box.width - 240))}px`;
    hint.style.top = `${event.clientY - box.top + 18}px`;
  });
  canvas.addEventListener("pointerleave", () => { hint.hidden = true; });
  const resized = new ResizeObserver(draw);
  resized.observe(element);
  window.addEventListener("themechange", draw);
  return {
    element,
    legend,
    stateOf: (rank) => states.get(rank) ?? "running",
    /** Shows the value of a mesh. */
    show(value) {
      mesh = value.mesh;
      states = new Map(value.ranks);
      details = detailLines(value);
      const counts = new Map(STATES.map((name) => [name, value.ranks.filter((one) => one[1] === name).length]));
      const words = [...counts].filter((one) => one[1]).map(([name, n]) => `${n} ${name}`);
      canvas.setAttribute("aria-label", `${mesh.size} ranks: ${words.join(", ") || "all running"}`);
      counts.set("running", mesh.size - value.ranks.length);
      setChildren(legend, [...counts].filter((one) => one[1]).map(([name, n]) => h("span", { class: `state ${name}` }, h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[name]), `${count(n)} ${name}`)));
      draw();
    },
    close() {
      resized.disconnect();
      window.removeEventListener("themechange", draw);
    },
  };
}

/** Returns lines for the card of each rank: its place, its activity, and why it failed. */
function detailLines(value) {
  const lines = new Map();
  const add = (rank, words) => lines.set(rank, [...(lines.get(rank) ?? []), words]);
  for (const [rank, host, proc] of value.places) add(rank, `process ${proc} on ${host}`);
  for (const node of value.nodes) {
    const activity = node.actor_status === "processing" ? `processing ${node.last_message_handler ?? ""}` : node.actor_status;
    add(node.rank, `${activity}, ${count(node.messages_processed)} processed, ${plural(node.queue_depth, "message")} queued`);
  }
  for (const failure of value.failures) add(failure.rank, failure.reason ?? "unknown reason");
  return lines;
}

const placeOf = ({ columns, width, height, left, top }, rank) => ({
  x: left + (rank % columns) * width + 1,
  y: top + Math.floor(rank / columns) * height + 1,
  width: width - (width > 6 ? 3 : width > 3 ? 1 : 0),
  height: height - (height > 6 ? 3 : height > 3 ? 1 : 0),
});

function cardName(mesh, rank) {
  const found = coordinates(mesh, rank);
  return found.length ? coordinateText([found.at(-1)]) : `rank ${rank}`;
}

function drawCard(paint, palette, { x, y, width, height }, state, name) {
  const colour = palette[COLOURS[state]];
  paint.fillStyle = colour;
  paint.globalAlpha = 0.13;
  paint.beginPath();
  paint.roundRect(x, y, width, height, 5);
  paint.fill();
  paint.globalAlpha = 1;
  paint.fillRect(x, y + 4, 3, height - 8);
  paint.fillStyle = palette.text;
  paint.font = `12px ${FONT}`;
  paint.textAlign = "left";
  paint.fillText(name, x + 11, y + 17, width - 14);
  paint.fillStyle = state === "stopped" ? palette.muted : colour;
  paint.font = `11px ${FONT}`;
  paint.fillText(`${SIGNS[state]} ${state}`, x + 11, y + 34, width - 14);
}

function drawSquare(paint, palette, place, state) {
  const { x, y, width, height } = place;
  paint.fillStyle = palette[COLOURS[state]];
  if (state !== "running" && width < SIGN_SIDE_MIN) {
    drawSmall(paint, place, state);
    return;
  }
  paint.fillRect(x, y, width, height);
  if (state === "running") return;
  paint.fillStyle = palette.panel;
  paint.font = `bold ${Math.round(width * 0.6)}px ${FONT}`;
  paint.textAlign = "center";
  paint.fillText(SIGNS[state], x + width / 2, y + height * 0.72);
}

/** Draws a square that is too small for a sign: each state has a shape. */
function drawSmall(paint, { x, y, width, height }, state) {
  paint.strokeStyle = paint.fillStyle;
  paint.lineWidth = Math.max(1, width / 4);
  if (state === "failed") {
    paint.beginPath();
    for (const [from, to] of [[0, 1], [1, 0]]) {
      paint.moveTo(x + from * width, y);
      paint.lineTo(x + to * width, y + height);
    }
    paint.stroke();
  } else if (state === "waiting") {
    paint.fillRect(x, y, width / 3, height);
    paint.fillRect(x + (width * 2) / 3, y, width / 3, height);
  } else if (state === "dead") paint.strokeRect(x + 1, y + 1, width - 2, height - 2);
  else paint.fillRect(x + width / 4, y + height / 4, width / 2, height / 2);
}

function outline(paint, palette, { x, y, width, height }) {
  paint.strokeStyle = palette.text;
  paint.lineWidth = 2;
  paint.strokeRect(x, y, width, height);
}

/** Labels rows with all coordinates but the last, and columns with the last one. */
function drawLabels(paint, palette, mesh, { columns, width, height, left, top }) {
  if (!left) return;
  paint.fillStyle = palette.muted;
  paint.font = `11px ${FONT}`;
  paint.textAlign = "right";
  const shape = dimensions(mesh);
  const isWhole = shape.length > 1 && columns === shape.at(-1)[1];
  const every = Math.max(1, Math.ceil(LABEL_PX_MIN / height));
  for (let row = 0; row * columns < mesh.size; row += every) {
    const words = isWhole ? coordinateText(coordinates(mesh, row * columns).slice(0, -1)) : `rank ${row * columns}`;
    paint.fillText(words, left - 8, top + (row + 0.5) * height + 4, left - 8);
  }
  paint.textAlign = "center";
  const step = Math.max(1, Math.ceil(COLUMN_LABEL_PX_MIN / width));
  for (let column = 0; column < columns; column += step) paint.fillText(String(column), left + (column + 0.5) * width, top - 7);
  if (!isWhole) return;
  paint.textAlign = "right";
  paint.fillText(shape.at(-1)[0], left - 8, top - 7, left - 8);
}
