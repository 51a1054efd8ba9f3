// A layered layout of a graph: nodes in columns, and edges that pass between nodes, not over them.

const SWEEPS = 12;

/**
 * Places nodes, and routes edges through free places in the columns between their ends.
 *
 * `nodes` are `{ id, parents }`, in which parents exist; `edges` are `[from, to]`. `sizes` has the `width` and
 * `height` of a node, the horizontal `between`, the vertical `gap`, and the height `lane` of a passing edge.
 *
 * Returns `places`, which maps an id to `[x, y]`, `routes`, one list of passed places `[x, y]` for each edge from
 * left to right, and the `width` and `height` of all.
 */
export function layered(nodes, edges, sizes) {
  const depth = depths(nodes);
  const columns = [];
  const links = [];
  const add = (item) => (columns[item.depth] ??= []).push(item);
  const items = new Map();
  for (const node of nodes) {
    const item = { depth: depth.get(node.id), height: sizes.height, order: 0, y: 0 };
    items.set(node.id, item);
    add(item);
  }
  const routes = edges.map(([from, to]) => {
    const ends = [items.get(from), items.get(to)].sort((one, other) => one.depth - other.depth);
    const route = [];
    for (let at = ends[0].depth + 1; at < ends[1].depth; at += 1) route.push({ depth: at, height: sizes.lane, order: 0, y: 0 });
    route.forEach(add);
    const path = [ends[0], ...route, ends[1]];
    if (ends[0].depth !== ends[1].depth) for (let at = 1; at < path.length; at += 1) links.push([path[at - 1], path[at]]);
    return route;
  });
  const filled = columns.filter(Boolean);
  const neighbours = neighboursOf(links);
  order(filled, neighbours);
  settle(filled, neighbours, sizes.gap);
  const x = (item) => item.depth * (sizes.width + sizes.between);
  const all = filled.flat();
  const top = Math.min(...all.map((item) => item.y - item.height / 2));
  return {
    places: new Map([...items].map(([id, item]) => [id, [x(item), item.y - item.height / 2 - top]])),
    routes: routes.map((route) => route.map((item) => [x(item), item.y - top])),
    width: Math.max(...all.map(x)) + sizes.width,
    height: Math.max(...all.map((item) => item.y + item.height / 2)) - top,
  };
}

/** Returns the column of each node: one more than that of its last parent. */
function depths(nodes) {
  const parents = new Map(nodes.map((node) => [node.id, node.parents]));
  const found = new Map();
  const walk = (id) => {
    if (found.has(id)) return found.get(id);
    // A cycle, which unknown meshes can cause, ends here.
    found.set(id, 0);
    const depth = Math.max(-1, ...parents.get(id).map(walk)) + 1;
    found.set(id, depth);
    return depth;
  };
  for (const id of parents.keys()) walk(id);
  return found;
}

function neighboursOf(links) {
  const found = new Map();
  for (const [one, other] of links) {
    found.set(one, [...(found.get(one) ?? []), other]);
    found.set(other, [...(found.get(other) ?? []), one]);
  }
  return (item, depth) => (found.get(item) ?? []).filter((other) => depth === undefined || other.depth === depth);
}

/** Orders each column by the mean position of the neighbours in the column before or after it. */
function order(columns, neighbours) {
  const number = (column) => column.forEach((item, at) => { item.order = at / column.length; });
  columns.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    const step = sweep % 2 ? 1 : -1;
    for (const column of step < 0 ? columns : [...columns].reverse()) {
      const wanted = new Map(column.map((item) => [item, mean(neighbours(item, item.depth + step).map((other) => other.order), item.order)]));
      column.sort((one, other) => wanted.get(one) - wanted.get(other));
      number(column);
    }
  }
}

/** Moves items towards their neighbours, without a change of the order and without overlap. */
function settle(columns, neighbours, gap) {
  for (const column of columns) spread(column, column.map((_, at) => at * gap), gap);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) {
    for (const column of sweep % 2 ? [...columns].reverse() : columns) {
      spread(column, column.map((item) => mean(neighbours(item).map((other) => other.y), item.y)), gap);
    }
  }
}

/** Places a column near the wanted positions: the mean of the lowest and the highest valid placement. */
function spread(column, wanted, gap) {
  const apart = (one, other) => (one.height + other.height) / 2 + gap;
  const down = [...wanted];
  for (let at = 1; at < column.length; at += 1) down[at] = Math.max(down[at], down[at - 1] + apart(column[at - 1], column[at]));
  const up = [...wanted];
  for (let at = column.length - 2; at >= 0; at -= 1) up[at] = Math.min(up[at], up[at + 1] - apart(column[at], column[at + 1]));
  column.forEach((item, at) => { item.y = (down[at] + up[at]) / 2; });
}

const mean = (values, otherwise) => (values.length ? values.reduce((total, value) => total + value, 0) / values.length : otherwise);
