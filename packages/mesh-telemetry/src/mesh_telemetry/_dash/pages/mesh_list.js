// The list of meshes, those with failures first; many meshes are grouped by class.

import { debounce, h, setText } from "./dom.js";
import { count, plural } from "./format.js";
import { SIGNS } from "./states.js";
import { paged, virtual } from "./virtual.js";

const FLAT_MAX = 40;

/** Creates the list; `choose(id)` is called with the id of a mesh, first with the first one. */
export function meshList(page, current, choose) {
  const field = h("input", { type: "search", placeholder: "Filter by name or class", "aria-label": "Filter meshes" });
  const found = h("span", { class: "muted" });
  let chosen = current;
  let groups = [];
  const list = virtual({ label: "Meshes", row: drawRow, choose: pick, expand: (at, isOpen) => toggle(at, isOpen) });

  function groupOf(row) {
    const wanted = row ? { class: row.class } : { text: field.value };
    const group = { row, isOpen: !row, children: null };
    group.children = paged((offset, limit) => page.load("meshes", { ...wanted, offset, limit }), () => groups.includes(group) && changed());
    if (group.isOpen) group.children.restart();
    return group;
  }
  const sizeOf = (group) => (group.row ? 1 : 0) + (group.isOpen ? group.children.count : 0);
  function changed() {
    list.show(groups.reduce((total, group) => total + sizeOf(group), 0));
    if (!groups[0]?.row) setText(found, plural(groups[0]?.children.count ?? 0, "mesh"));
    const first = groups.find((group) => group.isOpen)?.children.at(0);
    if (!chosen && first) select(first.id);
    page.ready("topology");
  }
  function at(index) {
    for (const group of groups) {
      if (index < sizeOf(group)) {
        if (group.row && index === 0) return { group };
        return { group, mesh: group.children.at(index - (group.row ? 1 : 0)) };
      }
      index -= sizeOf(group);
    }
    return {};
  }
  const isHead = (entry) => Boolean(entry.group?.row) && !("mesh" in entry);
  function drawRow(index) {
    const entry = at(index);
    if (isHead(entry)) return classCells(entry.group);
    const { group, mesh } = entry;
    const children = mesh ? meshCells(mesh, Boolean(group.row)) : [h("span", { class: "muted" }, "…")];
    return { class: mesh && mesh.id === chosen ? "is-current" : "", indent: group?.row ? 1 : 0, children };
  }
  function toggle(index, isOpen) {
    const entry = at(index);
    if (!isHead(entry)) return;
    const { group } = entry;
    group.isOpen = isOpen;
    if (isOpen && !group.children.count) group.children.restart();
    changed();
  }
  function pick(index) {
    const entry = at(index);
    if (isHead(entry)) toggle(index, !entry.group.isOpen);
    else if (entry.mesh) select(entry.mesh.id);
  }
  function select(id) {
    chosen = id;
    list.refresh();
    choose(id);
  }
  async function start() {
    list.toStart();
    if (!field.value) {
      const value = await page.load("classes");
      if (!value || field.value) return;
      setText(found, plural(value.count, "mesh"));
      if (value.count > FLAT_MAX) {
        groups = value.rows.map(groupOf);
        // Without failures, the largest class comes first.
        toggle(0, true);
        return;
      }
    }
    groups = [groupOf(null)];
  }
  field.addEventListener("input", debounce(start));
  start();
  return {
    element: h("section", { class: "panel", "aria-label": "List of meshes" }, h("div", { class: "tools" }, field, found), list.element),
    close: list.close,
  };
}

function classCells({ row, isOpen }) {
  return [
    h("span", { class: "arrow", "aria-hidden": "true" }, isOpen ? "▾" : "▸"),
    h("span", { class: "name" }, row.class === "Proc" ? "Processes" : row.class),
    row.failed ? h("span", { class: "tag failed" }, `${SIGNS.failed} ${count(row.failed)} failed`) : null,
    h("span", { class: "muted" }, `${plural(row.meshes, "mesh")}, ${plural(row.ranks, "rank")}`),
  ];
}

function meshCells(mesh, isGrouped) {
  // Failed actors are stopped afterwards.
  const stopped = mesh.stopped - mesh.failures;
  return [
    h("span", { class: "name" }, mesh.given_name || "–", " ", h("span", { class: "muted" }, isGrouped ? "" : mesh.class === "Proc" ? "processes" : mesh.class)),
    mesh.failures ? h("span", { class: "tag failed" }, `${SIGNS.failed} ${plural(mesh.failures, "failure")}`) : null,
    stopped > 0 ? h("span", { class: "tag" }, `${SIGNS.stopped} ${count(stopped)} stopped`) : null,
    h("span", { class: "muted" }, plural(mesh.size, "rank")),
  ];
}
