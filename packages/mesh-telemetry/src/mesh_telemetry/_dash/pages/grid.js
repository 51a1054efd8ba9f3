// The ranks of a mesh on a canvas: squares coloured by state.

import { colours, h } from "./dom.js";

const STATES = ["running", "waiting", "failed", "dead", "stopped", "unknown"];
const COLOURS = { running: "good", waiting: "warn", failed: "bad", dead: "bad", stopped: "rest", unknown: "line" };
const SIDE_MAX = 26;
const HEIGHT_MAX = 420;

/** Creates a grid; `choose(rank)` is called when a rank is clicked, or selected by arrow keys. */
export function meshGrid(choose) {
  const canvas = h("canvas", { tabindex: 0, role: "img", "aria-label": "Ranks" });
  const hint = h("div", { class: "hint", hidden: true });
  const element = h("div", { class: "stage" }, canvas, hint);
  const legend = h("div", { class: "legend" }, STATES.slice(0, 5).map((name) => h("span", {}, h("i", { class: `i-${name}` }), name)));
  let mesh = null;
  let states = new Map();
  let chosen = -1;
  let layout = { columns: 1, step: 1 };

  function draw() {
    if (!mesh || !element.clientWidth) return;
    layout = measured(mesh, element.clientWidth);
    const { columns, step } = layout;
    const rows = Math.ceil(mesh.size / columns);
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(element.clientWidth * ratio);
    canvas.height = Math.max(1, Math.round((rows * step + 2) * ratio));
    canvas.style.height = `${rows * step + 2}px`;
    const paint = canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    const palette = colours(...new Set(Object.values(COLOURS)), "text");
    const gap = step > 6 ? 2 : step > 3 ? 1 : 0;
    paint.fillStyle = palette.good;
    for (let rank = 0; rank < mesh.size; rank += 1) {
      const state = states.get(rank);
      if (state) paint.fillStyle = palette[COLOURS[state] ?? "line"];
      paint.fillRect((rank % columns) * step + 1, Math.floor(rank / columns) * step + 1, step - gap, step - gap);
      if (state) paint.fillStyle = palette.good;
    }
    if (chosen >= 0) {
      paint.strokeStyle = palette.text;
      paint.lineWidth = 2;
      paint.strokeRect((chosen % columns) * step + 1, Math.floor(chosen / columns) * step + 1, step - gap, step - gap);
    }
  }

  function rankAt(event) {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - 1) / layout.step);
    const rank = Math.floor((event.clientY - box.top - 1) / layout.step) * layout.columns + column;
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
    hint.textContent = `${coordinatesOf(mesh, rank)}: ${states.get(rank) ?? "running"}`;
    const box = element.getBoundingClientRect();
    hint.style.left = `${Math.min(event.clientX - box.left + 12, box.width - 160)}px`;
    hint.style.top = `${event.clientY - box.top + 14}px`;
  });
  canvas.addEventListener("pointerleave", () => { hint.hidden = true; });
  const resized = new ResizeObserver(draw);
  resized.observe(element);
  window.addEventListener("themechange", draw);
  return {
    element,
    legend,
    stateOf: (rank) => states.get(rank) ?? "running",
    show(shown, ranks) {
      mesh = shown;
      states = new Map(ranks);
      const words = STATES.map((name) => [name, ranks.filter((one) => one[1] === name).length]).filter((one) => one[1]);
      canvas.setAttribute("aria-label", `${mesh.size} ranks: ${words.map(([name, n]) => `${n} ${name}`).join(", ") || "all running"}`);
      draw();
    },
    close() {
      resized.disconnect();
      window.removeEventListener("themechange", draw);
    },
  };
}

/** Returns the number of ranks in a row: the size of the last dimension, or as many as fit. */
function measured(mesh, width) {
  const sizes = dimensions(mesh).map((one) => one[1]);
  const last = sizes.length > 1 ? sizes.at(-1) : 0;
  for (let step = SIDE_MAX; step > 1; step -= 1) {
    const fits = Math.max(1, Math.floor((width - 2) / step));
    const columns = last && last <= fits ? last : Math.min(fits, mesh.size);
    if (Math.ceil(mesh.size / columns) * step <= HEIGHT_MAX) return { columns, step };
  }
  return { columns: Math.max(1, Math.floor((width - 2) / 2)), step: 2 };
}

function dimensions(mesh) {
  try {
    return Object.entries(JSON.parse(mesh.shape_json));
  } catch {
    return [];
  }
}

/** Formats the coordinates of a rank, such as `gpus 3, hosts 0 (rank 3)`. */
function coordinatesOf(mesh, rank) {
  let left = rank;
  const words = [];
  for (const [name, size] of dimensions(mesh).reverse()) {
    words.unshift(`${name} ${left % size}`);
    left = Math.floor(left / size);
  }
  return `${words.join(", ")} (rank ${rank})`;
}
