// Meshes: a list, the ranks of one as a grid, and a graph of spawn relations and calls.

import { debounce, h, setChildren, setText, tag } from "./dom.js";
import { drawGraph } from "./graph.js";
import { meshGrid } from "./grid.js";
import { failureTable } from "./overview.js";
import { clock, count, plural, shape } from "./format.js";
import { paged, virtual } from "./virtual.js";

export function open(root, page, wanted) {
  let view = wanted.get("view") ?? "grid";
  let close = () => {};
  const body = h("div", { class: "fill stage" });
  body.style.display = "flex";
  const buttons = ["grid", "graph"].map((name) => h("button", { type: "button", onclick: () => show(name) }, name === "grid" ? "Meshes" : "Graph"));
  setChildren(root, h("div", { class: "tools" }, h("div", { class: "switch", role: "group", "aria-label": "View" }, buttons)), body);
  function show(name) {
    view = name;
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(["grid", "graph"][at] === view)));
    close();
    page.setArguments("topology", view === "graph" ? { view } : {});
    close = view === "graph" ? graphView(body, page, (id) => { wanted.set("id", id); show("grid"); }) : gridView(body, page, wanted);
  }
  show(view);
  return () => close();
}

function gridView(body, page, wanted) {
  const field = h("input", { type: "search", placeholder: "Filter by name or class", "aria-label": "Filter meshes" });
  const found = h("span", { class: "muted" });
  const side = h("section", { class: "panel scroll", "aria-label": "Mesh" }, h("p", { class: "empty" }, "Select a mesh."));
  let end = () => {};
  let current = wanted.get("id");
  const rows = paged(
    (offset, limit) => page.fetch("meshes", { text: field.value, offset, limit }),
    () => {
      list.show(rows.count);
      setText(found, plural(rows.count, "mesh"));
      const first = rows.at(0);
      if (!current && first) choose(first.id);
      page.ready("topology");
    },
  );
  const list = virtual({
    label: "Meshes",
    row(at) {
      const mesh = rows.at(at);
      if (!mesh) return [h("span", { class: "muted" }, "…")];
      return {
        class: mesh.id === current ? "is-current" : "",
        children: [
          h("span", { class: "name" }, mesh.given_name || "–", " ", h("span", { class: "muted" }, mesh.class)),
          mesh.failures ? h("span", { class: "tag failed" }, plural(mesh.failures, "failure")) : null,
          mesh.stopped ? h("span", { class: "tag" }, `${count(mesh.stopped)} stopped`) : null,
          h("span", { class: "muted" }, count(mesh.size)),
        ],
      };
    },
    choose: (at) => rows.at(at) && choose(rows.at(at).id),
  });
  function choose(id) {
    end();
    current = id;
    end = meshDetail(side, page, id);
    page.setArguments("topology", { id });
  }
  field.addEventListener("input", debounce(() => {
    list.toStart();
    rows.restart();
  }));
  setChildren(
    body,
    h("div", { class: "split" }, h("section", { class: "panel", "aria-label": "List of meshes" }, h("div", { class: "tools" }, field, found), list.element), side),
  );
  rows.restart();
  if (current) choose(current);
  return () => {
    end();
    list.close();
  };
}

function meshDetail(side, page, id) {
  const heading = h("h1", {}, "…");
  const facts = h("p", { class: "muted" });
  const chosen = h("div", {});
  const failures = h("div", {});
  let mesh = null;
  const grid = meshGrid((rank) => showRank(rank));
  setChildren(side, heading, facts, grid.element, grid.legend, chosen, h("h3", {}, "Failures"), failures);
  async function showRank(rank) {
    if (mesh?.class === "Proc") {
      setChildren(chosen, h("h3", {}, `Rank ${rank}`), h("p", {}, "Process, ", tag(grid.stateOf(rank)), ": see its actors in the ", h("a", { href: "#/explorer" }, "explorer"), "."));
      return;
    }
    const value = await page.fetch("actor", { mesh: id, rank });
    if (!value) return;
    if (!value.actor) {
      setChildren(chosen, h("h3", {}, `Rank ${rank}`), h("p", { class: "empty" }, "No start of this actor was recorded."));
      return;
    }
    const actor = value.actor;
    setChildren(
      chosen,
      h("h3", {}, `${actor.display_name}[${rank}]`),
      h("dl", {},
        h("dt", {}, "State"), h("dd", {}, tag(grid.stateOf(rank))),
        h("dt", {}, "Address"), h("dd", { class: "mono" }, actor.full_name),
        h("dt", {}, "Messages"), h("dd", {}, count(value.message_count)),
        h("dt", {}, "Started"), h("dd", {}, clock(actor.timestamp_us)),
      ),
      h("p", {}, h("a", { href: `#/explorer?id=${actor.id}` }, "Details")),
    );
  }
  let shown = "";
  const end = page.subscribe("mesh", { id }, (value) => {
    mesh = value.mesh;
    if (!mesh) {
      setText(heading, "This mesh no longer exists");
      return;
    }
    setText(heading, `${mesh.given_name || "–"} (${mesh.class})`);
    setText(facts, `${shape(mesh.shape_json)}: ${plural(mesh.size, "rank")}, ${count(value.started)} started; spawned at ${clock(mesh.timestamp_us, 0)} by ${mesh.full_name}`);
    grid.show(mesh, value.ranks);
    const now = JSON.stringify(value.failures);
    if (now !== shown) setChildren(failures, failureTable(value.failures));
    shown = now;
  });
  return () => {
    end();
    grid.close();
  };
}

function graphView(body, page, chosen) {
  const note = h("div", { class: "muted" });
  const stage = h("div", { class: "fill panel" });
  const frame = h("div", { class: "fill" }, note, stage);
  frame.style.display = "flex";
  frame.style.flexDirection = "column";
  frame.style.gap = "8px";
  setChildren(body, frame);
  const graph = drawGraph(stage, chosen);
  const end = page.subscribe("graph", {}, (value) => {
    const hidden = value.count - value.nodes.length;
    const sender = value.sender_is_known ? "" : " Senders are shown as processes, not as actors.";
    setText(note, `${plural(value.nodes.length, "mesh")} shown${hidden > 0 ? ` of ${count(value.count)}, those with the most messages` : ""}. Dashed: spawned. Lines: messages.${sender}`);
    graph.show(value);
    page.ready("topology");
  });
  return end;
}
