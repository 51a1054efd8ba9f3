// A graph of meshes, with parents on the left; line width shows the number of messages.

import { s, setChildren } from "./dom.js";
import { plural, short } from "./format.js";

const WIDTH = 172;
const HEIGHT = 44;
const BETWEEN = 120;
const GAP = 16;
const ZOOM_MIN = 0.2;
const ZOOM_MAX = 3;
const LABELS_MAX = 16;
const LEAVES_MIN = 8;

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
      zoom = Math.min(1, Math.max(0.45, Math.min((box.width - 40) / size[0], (box.height - 40) / size[1])));
      place();
    },
  };
}

function redraw(world, value, choose) {
  const root = { id: "0", given_name: "the program", class: "", size: 1, isRoot: true };
  const nodes = new Map([root, ...value.nodes].map((node) => [node.id, node]));
  const spawns = [];
  for (const node of value.nodes) {
    const parent = [node.parent_mesh_id, node.owner_mesh_id, "0"].find((id) => id && nodes.has(id) && id !== node.id);
    spawns.push([parent, node.id]);
  }
  const [places, size] = arranged(nodes, spawns);
  const most = Math.max(1, ...value.edges.map((edge) => edge[2]));
  const focused = document.activeElement?.dataset?.mesh;
  world.replaceChildren(
    ...spawns.map(([from, to]) => s("path", { class: "spawn", d: curve(places.get(from), places.get(to)) })),
    ...value.edges.flatMap(([from, to, n], at) => sent(places.get(from), places.get(to), n, most, at < LABELS_MAX)),
    ...[...nodes.values()].map((node) => box(node, places.get(node.id), choose)),
  );
  if (focused) world.querySelector(`[data-mesh="${focused}"]`)?.focus();
  return size;
}

/** Places each mesh to the right of its parent, in rows that do not overlap. */
function arranged(nodes, spawns) {
  const children = new Map();
  for (const [from, to] of spawns) children.set(from, [...(children.get(from) ?? []), to]);
  const places = new Map();
  let row = 0;
  let widest = 0;
  // Parents may form a cycle if a mesh between them is unknown, so each mesh is placed once.
  const walk = (id, depth) => {
    if (places.has(id)) return;
    places.set(id, null);
    const first = row;
    const [leaves, others] = partition(children.get(id) ?? [], (child) => !children.has(child) && !places.has(child));
    const columns = Math.max(1, Math.round(Math.sqrt(leaves.length / LEAVES_MIN)));
    leaves.forEach((leaf, at) => {
      const x = (depth + 1) * (WIDTH + BETWEEN) + (at % columns) * (WIDTH + GAP);
      widest = Math.max(widest, x + WIDTH);
      places.set(leaf, [x, (first + Math.floor(at / columns)) * (HEIGHT + GAP)]);
    });
    row += Math.ceil(leaves.length / columns);
    for (const child of others) walk(child, depth + 1);
    if (row === first) row += 1;
    places.set(id, [depth * (WIDTH + BETWEEN), ((first + row - 1) / 2) * (HEIGHT + GAP)]);
    widest = Math.max(widest, depth * (WIDTH + BETWEEN) + WIDTH);
  };
  walk("0", 0);
  for (const id of nodes.keys()) walk(id, 1);
  return [places, [widest, row * (HEIGHT + GAP)]];
}

function partition(values, isFirst) {
  return [values.filter(isFirst), values.filter((value) => !isFirst(value))];
}

function curve([fromX, fromY], [toX, toY], lift = 0) {
  const start = [fromX + WIDTH, fromY + HEIGHT / 2 + lift];
  const end = [toX, toY + HEIGHT / 2 + lift];
  const bend = Math.max(40, Math.abs(end[0] - start[0]) / 2);
  return `M${start[0]},${start[1]}C${start[0] + bend},${start[1]} ${end[0] - bend},${end[1]} ${end[0]},${end[1]}`;
}

function sent(from, to, n, most, isNamed) {
  if (!from || !to) return [];
  const width = 1 + (Math.log1p(n) / Math.log1p(most)) * 5;
  const line = s("path", { class: "sent", d: curve(from, to, 6), "stroke-width": width }, s("title", {}, plural(n, "message")));
  if (!isNamed) return [line];
  const middle = [(from[0] + WIDTH + to[0]) / 2, (from[1] + to[1]) / 2 + HEIGHT / 2 + 3];
  return [line, s("text", { class: "count", x: middle[0], y: middle[1] }, short(n))];
}

function box(node, [x, y], choose) {
  const name = node.given_name || "–";
  const words = node.isRoot ? "" : node.class === "Proc" ? plural(node.size, "process") : `${node.class}, ${plural(node.size, "rank")}`;
  const pick = () => !node.isRoot && choose(node.id);
  return s(
    "g",
    {
      class: `node ${node.class === "Proc" || node.isRoot ? "procs" : ""}`,
      transform: `translate(${x} ${y})`,
      tabindex: node.isRoot ? -1 : 0,
      role: "button",
      "data-mesh": node.id,
      "aria-label": `${name}: ${words}`,
      onclick: pick,
      onkeydown: (event) => event.key === "Enter" && pick(),
    },
    s("rect", { width: WIDTH, height: HEIGHT, rx: 7 }),
    s("text", { x: 10, y: 18 }, cut(name)),
    s("text", { class: "sub", x: 10, y: 34 }, cut(words)),
    s("title", {}, `${name}\n${words}`),
  );
}

const cut = (words) => (words.length > 24 ? `${words.slice(0, 23)}…` : words);
