// SQL queries, their results as a table, and the history.

import { h, setChildren, setText } from "./dom.js";
import { count, plural } from "./format.js";
import { virtual } from "./virtual.js";
import { query, UnauthorizedError } from "./requests.js";

const HISTORY = "mesh-queries";
const HISTORY_MAX = 20;
const FIRST = "select display_name, class, count(*) as ranks\nfrom actors\ngroup by display_name, class\norder by ranks desc\nlimit 100";
const COLUMN_MAX = 60;

export function open(root, page, wanted) {
  const editor = h("textarea", { class: "sql", "aria-label": "SQL", spellcheck: false });
  editor.value = wanted.get("sql") ?? readHistory()[0] ?? FIRST;
  const run = h("button", { class: "main", type: "button", onclick: runQuery, title: "Ctrl+Enter" }, "Run");
  const state = h("span", { class: "muted", role: "status" });
  const result = h("div", { class: "fill" });
  result.style.display = "flex";
  result.style.flexDirection = "column";
  const tables = h("div", { class: "list-of-tables" });
  const recent = h("select", { "aria-label": "Recent queries", onchange: () => { editor.value = recent.value || editor.value; recent.value = ""; } });
  const saves = ["csv", "json"].map((kind) => h("button", { type: "button", disabled: true, onclick: () => save(kind) }, kind.toUpperCase()));
  let reply = null;
  let close = () => {};

  async function runQuery() {
    const sql = editor.value.trim();
    if (!sql) return;
    run.disabled = true;
    setText(state, "running");
    const began = performance.now();
    try {
      reply = await query(sql);
      addToHistory(sql);
      showHistory();
      const failed = reply.coverage.failed.map((one) => `${one.host} (${one.cause})`);
      const took = Math.round(performance.now() - began);
      const hosts = failed.length ? `, missing ${failed.join(", ")}` : ` from ${plural(reply.coverage.replied.length, "host")}`;
      setChildren(state, `${plural(reply.rows.length, "row")} in ${took} ms`, h("span", { class: failed.length ? "bad" : "" }, hosts));
      show();
    } catch (error) {
      reply = null;
      setText(state, "");
      if (!page.isOpen()) return;
      setChildren(result, h("pre", { class: "bad", role: "alert" }, error instanceof UnauthorizedError ? "the token is invalid: reload the page with a valid token" : error.message));
    }
    run.disabled = false;
    for (const button of saves) button.disabled = !reply;
  }
  function show() {
    close();
    const made = resultTable(reply);
    setChildren(result, made.elements);
    close = made.close;
  }
  function save(kind) {
    const text = kind === "csv" ? csv(reply) : JSON.stringify(reply.rows, null, 1);
    const link = h("a", { href: URL.createObjectURL(new Blob([text])), download: `result.${kind}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  function showHistory() {
    setChildren(recent, h("option", { value: "" }, "Recent queries"), readHistory().map((sql) => h("option", { value: sql }, sql.replace(/\s+/g, " ").slice(0, 70))));
  }
  editor.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    runQuery();
  });
  showHistory();
  recent.style.maxWidth = "200px";
  const split = h(
    "div",
    { class: "split" },
    h("section", { class: "panel scroll", "aria-label": "Tables" }, h("h2", {}, "Tables"), tables),
    h("section", { class: "panel", "aria-label": "Query" }, editor, h("div", { class: "tools" }, run, recent, h("span", { class: "grow" }), state, "Save", saves), result),
  );
  split.style.gridTemplateColumns = "260px minmax(0, 1fr)";
  setChildren(root, split);
  page.load("tables").then((value) => {
    if (!value) return;
    setChildren(tables, value.rows.map((table) => tableElement(table, editor)));
    page.ready("sql");
  });
  return () => close();
}

function tableElement(table, editor) {
  const insert = (words) => {
    editor.setRangeText(words, editor.selectionStart, editor.selectionEnd, "end");
    editor.focus();
  };
  return h(
    "details",
    {},
    h("summary", { title: table.text }, h("span", { class: "mono" }, table.name), table.is_live ? h("span", { class: "muted" }, " live") : null),
    h("p", { class: "muted" }, table.text, " ", h("button", { class: "link", type: "button", onclick: () => insert(table.name) }, "insert")),
    table.columns.map((column) =>
      h("div", {}, h("button", { class: "link mono", type: "button", title: column.text, onclick: () => insert(column.name) }, column.name), h("span", { class: "muted" }, ` ${column.type}`))),
  );
}

function resultTable({ columns, rows }) {
  // The width of a column is derived from the first rows.
  const widths = columns.map((name) => {
    const longest = rows.slice(0, 100).reduce((most, row) => Math.max(most, words(row[name]).length), name.length);
    return `${Math.min(longest, COLUMN_MAX) + 2}ch`;
  });
  const cell = (text, at, kind = "") => {
    const made = h("span", { class: `mono ${kind}`, title: text.length > COLUMN_MAX ? text : undefined }, text);
    made.style.cssText = `width:${widths[at]};flex:none;overflow:hidden;text-overflow:ellipsis`;
    return made;
  };
  const list = virtual({
    label: "Rows",
    kind: "lines",
    height: 24,
    row: (at) => columns.map((name, column) => cell(words(rows[at][name]), column, rows[at][name] === null ? "muted" : "")),
  });
  const head = h("div", { class: "row" }, columns.map((name, at) => cell(name, at, "muted")));
  head.style.cssText = "display:flex;gap:12px;padding:6px 8px;white-space:nowrap;border-bottom:1px solid var(--line);flex:none";
  const wide = h("div", {}, head, list.element);
  wide.style.cssText = "display:flex;flex-direction:column;min-height:0;flex:1;min-width:100%;width:max-content";
  const frame = h("div", { "data-part": "rows", "aria-label": `${count(rows.length)} rows`, role: "region" }, wide);
  frame.style.cssText = "display:flex;flex:1;min-height:0;overflow-x:auto;overflow-y:hidden";
  const spacer = widths.reduce((total, width) => total + parseInt(width, 10) * 8 + 12, 16);
  list.element.style.minWidth = `${spacer}px`;
  list.show(rows.length);
  return { elements: [frame], close: list.close };
}

const words = (value) => (value === null ? "null" : typeof value === "object" ? JSON.stringify(value) : String(value));

function csv({ columns, rows }) {
  const field = (value) => {
    const text = value === null ? "" : words(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [columns, ...rows.map((row) => columns.map((name) => row[name]))].map((line) => line.map(field).join(",")).join("\r\n");
}

function readHistory() {
  try {
    return JSON.parse(localStorage.getItem(HISTORY)) ?? [];
  } catch {
    return [];
  }
}

function addToHistory(sql) {
  localStorage.setItem(HISTORY, JSON.stringify([sql, ...readHistory().filter((one) => one !== sql)].slice(0, HISTORY_MAX)));
}
