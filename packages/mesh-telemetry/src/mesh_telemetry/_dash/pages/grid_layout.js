// Where the ranks of a mesh are on a grid, and the coordinates of each.

const LABELLED_MAX = 64;
const CARD_WIDTH_MIN = 84;
const CARD_WIDTH_MAX = 132;
const CARD_HEIGHT = 46;
const SIDE_MAX = 26;
const HEIGHT_MAX = 420;
const LEFT = 78;
const TOP = 20;

/**
 * Computes the layout of a mesh for a width: `{ isLabelled, columns, width, height, left, top }`,
 * with the size of a cell, and the position of the first one.
 *
 * A row has the ranks of the last dimension, or as many ranks as fit.
 */
export function gridLayout(mesh, whole) {
  const sizes = dimensions(mesh).map((one) => one[1]);
  const last = sizes.length > 1 ? sizes.at(-1) : 0;
  const left = last ? LEFT : 0;
  const inside = whole - left - 2;
  if (mesh.size <= LABELLED_MAX) {
    const fits = Math.max(1, Math.floor(inside / CARD_WIDTH_MIN));
    const columns = last && last <= fits ? last : Math.min(fits, mesh.size);
    if (!last || columns === last) {
      const width = Math.min(CARD_WIDTH_MAX, Math.floor(inside / columns));
      return { isLabelled: true, columns, width, height: CARD_HEIGHT, left, top: last ? TOP : 0 };
    }
  }
  for (let side = SIDE_MAX; side > 1; side -= 1) {
    const fits = Math.max(1, Math.floor((whole - LEFT - 2) / side));
    const columns = last && last <= fits ? last : Math.min(fits, mesh.size);
    if (Math.ceil(mesh.size / columns) * side <= HEIGHT_MAX) return { isLabelled: false, columns, width: side, height: side, left: LEFT, top: TOP };
  }
  const columns = Math.max(1, Math.floor((whole - LEFT - 2) / 2));
  return { isLabelled: false, columns, width: 2, height: 2, left: LEFT, top: TOP };
}

/** Returns the names and sizes of the dimensions. */
export function dimensions(mesh) {
  try {
    return Object.entries(JSON.parse(mesh.shape_json));
  } catch {
    return [];
  }
}

/** Returns the name and coordinate of a rank in each dimension. */
export function coordinates(mesh, rank) {
  let left = rank;
  const found = [];
  for (const [name, size] of dimensions(mesh).reverse()) {
    found.unshift([name, left % size]);
    left = Math.floor(left / size);
  }
  return found;
}

/** Formats coordinates, such as `hosts 0, gpus 3`. */
export const coordinateText = (found) => found.map(([name, at]) => `${name} ${at}`).join(", ");
