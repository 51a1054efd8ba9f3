// How much each rank delays each training step, as a heat map, and what it spends its time with.

import { colours, h, setChildren, setText, table } from "./dom.js";
import { count, duration, plural } from "./format.js";

const ROW_PX_MAX = 18;
const ROW_PX_MIN = 3;
const LABEL_PX = 90;
// A delay of this share of a step has the strongest colour.
const DELAY_MAX = 0.3;
const SLOWEST_MAX = 12;
const FONT = "11px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";

export function open(root, page, wanted) {
  let mesh = wanted.get("mesh") ?? "";
  let close = () => {};
  const choice = h("select", { "aria-label": "Mesh", onchange: () => choose(choice.value) });
  const found = h("span", { class: "muted" });
  const map = heatMap();
  const slowest = h("div", { class: "scroll fill" });
  const legend = h(
    "div",
    { class: "legend" },
    h("span", {}, h("i", { class: "i-early" }), "faster than the median of all ranks"),
    h("span", {}, h("i", { class: "i-late" }), `slower, by ${DELAY_MAX * 100}% of the step or more`),
    h("span", {}, "Waits in collectives do not count."),
  );
  setChildren(
    root,
    h(
      "div",
      { class: "split stacked" },
      h("section", { class: "panel", "aria-label": "Steps" }, h("div", { class: "tools" }, h("h1", {}, "Training steps"), choice, found, legend), map.element),
      h("section", { class: "panel", "aria-label": "Slowest ranks" }, h("h2", {}, "Slowest ranks"), slowest),
    ),
  );
  const resized = new ResizeObserver(() => map.draw());
  resized.observe(map.element);
  window.addEventListener("themechange", map.draw);

  function choose(name) {
    mesh = name;
    page.setArguments("steps", mesh ? { mesh } : {});
    close();
    close = page.subscribe("steps", mesh ? { mesh } : {}, show);
  }

  function show(value) {
    showChoices(choice, value);
    const isKnown = value.ranks.length > 0;
    setText(found, isKnown ? `${plural(value.rank_count, "rank")}, steps ${count(value.steps[0])} to ${count(value.steps.at(-1))}` : "");
    map.show(value);
    setChildren(slowest, isKnown ? slowestTable(value.ranks) : h("p", { class: "empty" }, "No process has taken a training step: an optimizer of PyTorch ends one, or mark_step()."));
    page.ready("steps");
  }

  choose(mesh);
  return () => {
    close();
    resized.disconnect();
    window.removeEventListener("themechange", map.draw);
  };
}

function showChoices(choice, value) {
  const names = value.meshes.includes(value.mesh) || !value.mesh ? value.meshes : [value.mesh, ...value.meshes];
  if (JSON.stringify(names) !== choice.dataset.names) {
    setChildren(choice, names.map((name) => h("option", { value: name }, name)));
    choice.dataset.names = JSON.stringify(names);
  }
  choice.value = value.mesh;
  choice.hidden = names.length < 2;
}

function slowestTable(ranks) {
  const ordered = [...ranks].sort((one, other) => other.delay - one.delay).slice(0, SLOWEST_MAX);
  return table(
    [["Rank", "number tight"], ["Host"], ["Process", "tight"], ["Delay", "number tight"], ["Step", "number tight"], ["Compute", "number tight"], ["Input", "number tight"], ["Communication", "number tight"], ["Slow in", "tight"]],
    ordered.map((row) => [
      count(row.rank),
      row.host,
      row.proc,
      percent(row.delay),
      duration(row.duration_us),
      duration(row.compute_us),
      duration(row.input_us),
      duration(row.communication_us),
      row.cause,
    ]),
    "Slowest ranks",
  );
}

const percent = (share) => `${share > 0 ? "+" : ""}${(share * 100).toFixed(1)}%`;

/** Creates a canvas with a row for each rank and a column for each step. */
function heatMap() {
  const canvas = h("canvas", { role: "img", "aria-label": "Heat map of ranks and steps" });
  const hint = h("div", { class: "hint", hidden: true });
  const element = h("div", { class: "stage is-scrolled fill", "data-part": "heat" }, canvas, hint);
  let value = { ranks: [], steps: [] };
  let layout = { row_px: 1, column_px: 1 };

  function draw() {
    const width = element.clientWidth;
    if (!width) return;
    const { ranks, steps } = value;
    const row_px = Math.max(ROW_PX_MIN, Math.min(ROW_PX_MAX, Math.floor(element.clientHeight / Math.max(ranks.length, 1))));
    layout = { row_px, column_px: (width - LABEL_PX) / Math.max(steps.length, 1) };
    const ratio = window.devicePixelRatio || 1;
    const height = Math.max(row_px * ranks.length, 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const paint = canvas.getContext("2d");
    paint.setTransform(ratio, 0, 0, ratio, 0, 0);
    const palette = colours("bad", "good", "raised", "muted");
    paint.font = FONT;
    paint.textBaseline = "middle";
    ranks.forEach((row, at) => {
      const top = at * row_px;
      if (row_px >= 12) {
        paint.fillStyle = palette.muted;
        paint.fillText(`rank ${row.rank}`, 0, top + row_px / 2, LABEL_PX - 6);
      }
      row.delays.forEach((delay, column) => {
        if (delay === null) return;
        const left = LABEL_PX + column * layout.column_px;
        const gap = row_px > 6 ? 1 : 0;
        paint.globalAlpha = 1;
        paint.fillStyle = palette.raised;
        paint.fillRect(left, top, Math.ceil(layout.column_px), row_px - gap);
        paint.globalAlpha = Math.min(1, Math.abs(delay) / DELAY_MAX);
        paint.fillStyle = delay > 0 ? palette.bad : palette.good;
        paint.fillRect(left, top, Math.ceil(layout.column_px), row_px - gap);
      });
      paint.globalAlpha = 1;
    });
  }

  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const row = value.ranks[Math.floor((event.clientY - box.top) / layout.row_px)];
    const column = Math.floor((event.clientX - box.left - LABEL_PX) / layout.column_px);
    const delay = row?.delays[column];
    hint.hidden = delay === null || delay === undefined;
    if (hint.hidden) return;
    setText(hint, `rank ${row.rank} on ${row.host}, step ${count(value.steps[column])}: ${percent(delay)}`);
    hint.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 12, element.clientWidth - 260))}px`;
    hint.style.top = `${event.clientY - box.top + 14}px`;
  });
  canvas.addEventListener("pointerleave", () => { hint.hidden = true; });

  return {
    element,
    draw,
    show(now) {
      value = now;
      const late = now.ranks.filter((row) => row.cause).map((row) => row.rank);
      canvas.setAttribute("aria-label", `Heat map of ${plural(now.ranks.length, "rank")}; slow: ${late.join(", ") || "none"}`);
      draw();
    },
  };
}
