// A tree of hosts, their processes and actors, with details of the selected one.

import { actorDetail, procDetail } from "./detail.js";
import { debounce, h, setChildren, setText, tag } from "./dom.js";
import { count, plural } from "./format.js";
import { paged, virtual } from "./virtual.js";

const DEPTHS = { host: 0, proc: 1, actor: 2 };

export function open(root, page, wanted) {
  const field = h("input", { type: "search", placeholder: "Actor name, class or address", "aria-label": "Filter actors", value: wanted.get("text") ?? "" });
  const found = h("span", { class: "muted" });
  const side = h("section", { class: "panel scroll", "aria-label": "Detail" }, h("p", { class: "empty" }, "Select a process or an actor."));
  let end = () => {};
  const list = virtual({ label: "Hosts, processes and actors", row: drawRow, choose: pick, expand });
  let tree = null;
  let flat = null;

  function show(node) {
    end();
    if (node.kind === "actor") {
      end = actorDetail(side, page, node.row.id);
      page.setArguments("explorer", { id: node.row.id });
    } else if (node.kind === "proc") end = procDetail(side, page, node.row);
  }
  const nodeAt = (at) => (flat ? actorNode(flat.at(at)) : tree.at(at));
  function drawRow(at) {
    const node = nodeAt(at);
    if (!node?.row) return { indent: node ? DEPTHS[node.kind] : 0, children: [h("span", { class: "muted" }, "…")] };
    return { indent: flat ? 0 : DEPTHS[node.kind], children: rowChildren(node, Boolean(flat)) };
  }
  function pick(at) {
    const node = nodeAt(at);
    if (!node?.row) return;
    if (node.kind !== "actor") {
      tree.toggle(node, node.kind === "host" ? !node.isOpen : true);
      list.show(tree.length());
    }
    show(node);
  }
  function expand(at, isOpen) {
    const node = flat ? null : nodeAt(at);
    if (!node?.row || node.kind === "actor") return;
    tree.toggle(node, isOpen);
    list.show(tree.length());
  }
  function search() {
    list.toStart();
    list.select(-1);
    const text = field.value;
    if (!text) {
      flat = null;
      list.show(tree.length());
      setText(found, tree.summary());
      return;
    }
    const mine = (flat = paged(
      (offset, limit) => page.load("actors", { text, offset, limit }),
      () => {
        if (flat !== mine) return;
        list.show(flat.count);
        setText(found, plural(flat.count, "actor"));
      },
    ));
    flat.restart();
  }
  field.addEventListener("input", debounce(search));
  setChildren(
    root,
    h("div", { class: "split" }, h("section", { class: "panel", "aria-label": "Tree" }, h("div", { class: "tools" }, field, found), list.element), side),
  );
  page.load("hosts").then((value) => {
    if (!value) return;
    tree = treeOf(page, value.rows, () => !flat && list.show(tree.length()));
    search();
    page.ready("explorer");
  });
  if (wanted.get("id")) end = actorDetail(side, page, wanted.get("id"));
  return () => {
    end();
    list.close();
  };
}

/** Returns access to the rows of a tree by index; only visible rows are queried. */
function treeOf(page, rows, changed) {
  const hosts = rows.map((row) => ({ kind: "host", row, isOpen: false, children: null, length: () => row.procs, open: new Map() }));
  for (const host of hosts) {
    host.children = paged(
      (offset, limit) => page.load("procs", { host: host.row.host, number: host.row.number, offset, limit }),
      changed,
    );
  }
  if (hosts.length === 1) {
    hosts[0].isOpen = true;
    hosts[0].children.restart();
  }
  // The open processes of a host, each with its index and its actors.
  const under = (host) => [...host.open.entries()].sort((one, other) => one[0] - other[0]);
  const sizeOf = (host) => 1 + (host.isOpen ? host.children.count + under(host).reduce((total, [, open]) => total + open.count, 0) : 0);
  function within(host, at) {
    for (const [index, open] of under(host)) {
      if (at <= index) break;
      if (at <= index + open.count) return actorNode(open.at(at - index - 1));
      at -= open.count;
    }
    const row = host.children.at(at);
    return { kind: "proc", row, host, index: at, isOpen: host.open.has(at) };
  }
  return {
    length: () => hosts.reduce((total, host) => total + sizeOf(host), 0),
    summary: () => `${plural(hosts.length, "host")}, ${plural(hosts.reduce((total, host) => total + host.row.procs, 0), "process")}`,
    at(at) {
      for (const host of hosts) {
        const size = sizeOf(host);
        if (at < size) return at === 0 ? host : within(host, at - 1);
        at -= size;
      }
      return null;
    },
    toggle(node, isOpen) {
      if (node.kind === "host") {
        node.isOpen = isOpen;
        if (isOpen && !node.children.count) node.children.restart();
      } else if (!isOpen) node.host.open.delete(node.index);
      else if (!node.host.open.has(node.index)) {
        const { host, proc } = node.row;
        const open = paged((offset, limit) => page.load("actors", { host, proc, offset, limit }), changed);
        node.host.open.set(node.index, open);
        open.restart();
      }
    },
  };
}

const actorNode = (row) => ({ kind: "actor", row });

function rowChildren({ kind, row, isOpen }, isFlat) {
  if (kind === "host") {
    return [arrow(isOpen), h("span", { class: "name" }, row.host), row.dead ? h("span", { class: "tag dead" }, `${count(row.dead)} exited`) : null, h("span", { class: "muted" }, plural(row.procs, "process"))];
  }
  if (kind === "proc") {
    return [
      arrow(isOpen),
      h("span", { class: "name" }, `${row.mesh}[${row.rank}]`, " ", h("span", { class: "muted" }, `pid ${row.pid}`)),
      row.state === "dead" ? tag("dead") : null,
      h("span", { class: "muted" }, plural(row.actors, "actor")),
    ];
  }
  return [
    h("span", { class: "name" }, `${row.display_name}[${row.rank}]`, " ", h("span", { class: "muted" }, row.class ?? "")),
    isFlat ? h("span", { class: "muted mono" }, row.full_name) : null,
  ];
}

const arrow = (isOpen) => h("span", { class: "arrow", "aria-hidden": "true" }, isOpen ? "▾" : "▸");
