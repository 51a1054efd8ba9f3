// Meshes: a list, the ranks of one as a grid, and a graph of spawn relations and calls.

import { h, setChildren, setText, tag } from "./dom.js";
import { drawGraph } from "./graph.js";
import { meshGrid } from "./grid.js";
import { failureTable } from "./failures.js";
import { clock, count, plural, shape } from "./format.js";
import { meshList } from "./mesh_list.js";

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
  const side = h("section", { class: "panel scroll", "aria-label": "Mesh" }, h("p", { class: "empty" }, "Select a mesh."));
  let end = () => {};
  function choose(id) {
    end();
    end = meshDetail(side, page, id);
    page.setArguments("topology", { id });
  }
  const current = wanted.get("id");
  const list = meshList(page, current, choose);
  setChildren(body, h("div", { class: "split" }, list.element, side));
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
    setText(heading, `${mesh.given_name || "–"} (${mesh.class === "Proc" ? "processes" : mesh.class})`);
    setText(facts, `${shape(mesh.shape_json)}: ${plural(mesh.size, "rank")}, ${count(value.started)} started; spawned at ${clock(mesh.timestamp_us, 0)} by ${mesh.full_name}`);
    grid.show(value);
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
    const hidden = value.hidden_count ? ` ${count(value.hidden_count)} nodes without failures and with few messages are hidden.` : "";
    const sender = value.sender_is_known ? "" : " Senders are shown as processes, not as actors.";
    setText(note, `${plural(value.mesh_count, "mesh")}. Dashed: spawned. Arrows: messages. Stacked boxes: several meshes of one class.${hidden}${sender}`);
    graph.show(value);
    page.ready("topology");
  });
  return end;
}
