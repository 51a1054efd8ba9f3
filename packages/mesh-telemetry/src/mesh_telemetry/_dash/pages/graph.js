// A graph of meshes, with spawners on the left; line width shows the number of messages.

import { s, setChildren } from "./dom.js";
import { count, plural, short } from "./format.js";
import { layered } from "./layers.js";
import { SIGNS } from "./states.js";

const WIDTH = 190;
const HEIGHT = 48;
const SIZES = { width: WIDTH, height: HEIGHT, between: 130, gap: 14, lane: 10 };
const PORT = 11;
const LOOP = 24;
const STACK = 6;
const ARROW = 7;
const ZOOM_MIN = 0.2;
const ZOOM_MAX = 3;
const LABELS_MAX = 24;
const NAME_LEN_MAX = 24;

/** Draws into a stage; `choose(id)` is called with the mesh that was clicked. */
export function drawGraph(stage, choose) {
  const world = s("g", {});
  const svg = s("svg", { class: "graph", role: "group", "aria-label": "Graph of meshes" }, world);
  setChildren(stage, svg);
  let x = 20;
  let y = 20;
  let zoom = 1;
  let drawn = "";
  let isFitted = false;
  const place = () => world.setAttribute("transform", `translate(${x} ${y}) scale(${zoom})`);
  place();
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    const next = Math.min(ZOOM_MAX, Math.max(ZOOM_MIN, zoom * Math.exp(-event.deltaY / 400)));
    const [atX, atY] = [event.clientX - box.left, event.clientY - box.top];
    x = atX - ((atX - x) * next) / zoom;
    y = atY - ((atY - y) * next) / zoom;
    zoom = next;
    place();
  }, { passive: false });
  svg.addEventListener("pointerdown", (event) => {
    if (event.target.closest(".node")) return;
    svg.setPointerCapture(event.pointerId);
    const from = [event.clientX - x, event.clientY - y];
    const move = (moved) => {
      x = moved.clientX - from[0];
      y = moved.clientY - from[1];
      place();
    };
    svg.addEventListener("pointermove", move);
    svg.addEventListener("pointerup", () => svg.removeEventListener("pointermove", move), { once: true });
  });
  return {
    show(value) {
      const now = JSON.stringify(value);
      if (now === drawn) return;
      drawn = now;
      const size = redraw(world, value, choose);
      if (isFitted) return;
      isFitted = true;
      const box = svg.getBoundingClientRect();
      zoom = Math.min(1.25, Math.max(0.45, Math.min((box.width - 40) / size[0], (box.height - 40) / size[1])));
      x = Math.max(20, (box.width - size[0] * zoom) / 2);
      y = Math.max(20, (box.height - size[1] * zoom) / 2);
      place();
    },
  };
}

function redraw(world, value, choose) {
  const root = { id: "0", name: "the program", class: "", meshes: 1, ranks: 1, failed: 0, parents: [], isRoot: true };
  const nodes = [root, ...value.nodes];
  const spawned = value.nodes.flatMap((node) => node.parents.map((parent) => [parent, node.id]));
  // A pair of nodes with messages and a spawn relation has two edges, side by side.
  const edges = [
    ...spawned.map(([from, to]) => ({ from, to, kind: "spawn" })),
    ...value.edges.map(([from, to, n], at) => ({ from, to, kind: "sent", n, isNamed: at < LABELS_MAX })),
  ];
  const layout = layered(nodes, edges.map((edge) => [edge.from, edge.to]), SIZES);
  edges.forEach((edge, at) => { edge.route = layout.routes[at]; });
  setPorts(edges, layout.places);
  const most = Math.max(1, ...value.edges.map((edge) => edge[2]));
  const stacked = new Set(value.nodes.filter((node) => node.meshes > 1).map((node) => node.id));
  const focused = document.activeElement?.dataset?.mesh;
  world.replaceChildren(
    ...edges.flatMap((edge) => edgeElements(edge, layout.places, most, stacked)),
    ...nodes.map((node) => box(node, layout.places.get(node.id), choose)),
  );
  for (const node of world.querySelectorAll(".node")) {
    node.addEventListener("pointerenter", () => highlight(world, node.dataset.mesh));
    node.addEventListener("pointerleave", () => highlight(world, null));
  }
  if (focused) world.querySelector(`[data-mesh="${focused}"]`)?.focus();
  return [layout.width, layout.height];
}

/** Fades the edges that do not belong to a node. */
function highlight(world, id) {
  for (const edge of world.querySelectorAll("[data-from]")) edge.classList.toggle("is-faded", id !== null && edge.dataset.from !== id && edge.dataset.to !== id);
}

/** Distributes the ends of edges over the sides of their nodes, in the order of the other ends. */
function setPorts(edges, places) {
  const sides = new Map();
  const add = (id, side, edge, end, y) => {
    const key = `${id} ${side}`;
    sides.set(key, [...(sides.get(key) ?? []), { edge, end, y }]);
  };
  for (const edge of edges) {
    const [from, to] = [places.get(edge.from), places.get(edge.to)];
    edge.isLoop = from[0] === to[0];
    edge.isBack = from[0] > to[0];
    const first = edge.isBack ? edge.route.at(-1) : edge.route[0];
    const last = edge.isBack ? edge.route[0] : edge.route.at(-1);
    add(edge.from, edge.isBack ? "left" : "right", edge, "start", first?.[1] ?? to[1]);
    add(edge.to, edge.isBack || edge.isLoop ? "right" : "left", edge, "end", last?.[1] ?? from[1]);
  }
  for (const ends of sides.values()) {
    ends.sort((one, other) => one.y - other.y || (one.edge.kind === "spawn" ? -1 : 1));
    const step = Math.min(PORT, (HEIGHT - 10) / ends.length);
    ends.forEach(({ edge, end }, at) => { edge[end] = HEIGHT / 2 + (at - (ends.length - 1) / 2) * step; });
  }
}

function edgeElements(edge, places, most, stacked) {
  const [fromX, fromY] = places.get(edge.from);
  const [toX, toY] = places.get(edge.to);
  const isEndLeft = !edge.isBack && !edge.isLoop;
  const arrow = edge.kind === "sent" ? ARROW : 0;
  // The boxes behind a node are on its right.
  const behind = (id) => (stacked.has(id) ? STACK : 0);
  const start = [edge.isBack ? fromX : fromX + WIDTH + behind(edge.from), fromY + edge.start];
  const end = [isEndLeft ? toX - arrow : toX + WIDTH + behind(edge.to) + arrow, toY + edge.end];
  const passed = edge.route.flatMap(([x, y]) => [[x, y], [x + WIDTH, y]]);
  const points = [start, ...(edge.isBack ? passed.reverse() : passed), end];
  const ends = { "data-from": edge.from, "data-to": edge.to };
  const d = edge.isLoop ? loop(start, end) : curve(points);
  if (edge.kind === "spawn") return [s("path", { class: "spawn", d, ...ends })];
  const width = 1.2 + (Math.log1p(edge.n) / Math.log1p(most)) * 3.3;
  const tip = isEndLeft ? 1 : -1;
  const found = [
    s("path", { class: "sent", d, "stroke-width": width, ...ends }, s("title", {}, plural(edge.n, "message"))),
    s("path", { class: "tip", d: `M${end[0] + tip * arrow},${end[1]}l${-tip * arrow * 1.3},${-arrow * 0.7}v${arrow * 1.4}Z`, ...ends }),
  ];
  // The label of a loop is at its middle, where other loops are not.
  const [x, y] = edge.isLoop ? [(start[0] + end[0]) / 8 + bendOf(start, end) * 0.75, (start[1] + end[1]) / 2 + 4] : [end[0] - tip * 22, end[1] - 4];
  if (edge.isNamed) found.push(s("text", { class: "count", x, y, ...ends }, short(edge.n)));
  return found;
}

/** Draws smooth curves between columns; a passing edge is straight beside the nodes of a column. */
function curve(points) {
  let path = `M${points[0]}`;
  for (let at = 1; at < points.length; at += 1) {
    const [[fromX, fromY], [toX, toY]] = [points[at - 1], points[at]];
    const middle = (fromX + toX) / 2;
    path += fromY === toY ? `L${toX},${toY}` : `C${middle},${fromY} ${middle},${toY} ${toX},${toY}`;
  }
  return path;
}

const bendOf = (from, to) => Math.max(from[0], to[0]) + LOOP + Math.abs(to[1] - from[1]) / 4;

/** Draws a curve between nodes of one column, wider for longer distances, so that curves do not coincide. */
function loop(from, to) {
  const bend = bendOf(from, to);
  return `M${from}C${bend},${from[1]} ${bend},${to[1]} ${to}`;
}

function box(node, [x, y], choose) {
  const isProcs = node.class === "Proc";
  const name = node.meshes > 1 && !isProcs ? `${node.class} (${node.name})` : node.name || "–";
  const ranks = isProcs ? plural(node.ranks, "process") : plural(node.ranks, "rank");
  const meshes = node.meshes > 1 ? `${count(node.meshes)} meshes, ` : "";
  const words = node.isRoot ? "" : isProcs || meshes ? `${meshes}${ranks}` : `${node.class}, ${ranks}`;
  const failed = node.failed ? `${SIGNS.failed} ${node.meshes > 1 ? `${count(node.failed)} failed` : "failed"}` : "";
  const pick = () => !node.isRoot && choose(node.id);
  return s(
    "g",
    {
      class: `node ${isProcs || node.isRoot ? "procs" : ""} ${failed ? "failed" : ""}`,
      transform: `translate(${x} ${y})`,
      tabindex: node.isRoot ? -1 : 0,
      role: "button",
      "data-mesh": node.id,
      "aria-label": `${name}: ${words}${failed && `, ${failed}`}`,
      onclick: pick,
      onkeydown: (event) => event.key === "Enter" && pick(),
    },
    // Stacked edges show that a node is several meshes.
    node.meshes > 1 ? [s("rect", { x: STACK, y: STACK, width: WIDTH, height: HEIGHT, rx: 7 }), s("rect", { x: STACK / 2, y: STACK / 2, width: WIDTH, height: HEIGHT, rx: 7 })] : null,
    s("rect", { width: WIDTH, height: HEIGHT, rx: 7 }),
    s("text", { x: 12, y: node.isRoot ? HEIGHT / 2 + 4 : 20 }, cut(name, failed ? 15 : NAME_LEN_MAX)),
    s("text", { class: "sub", x: 12, y: 37 }, cut(words, NAME_LEN_MAX + 3)),
    failed ? s("text", { class: "state", x: WIDTH - 10, y: 20 }, failed) : null,
    s("title", {}, [name, words, failed].filter(Boolean).join("\n")),
  );
}

const cut = (words, length_max) => (words.length > length_max ? `${words.slice(0, length_max - 1)}…` : words);
