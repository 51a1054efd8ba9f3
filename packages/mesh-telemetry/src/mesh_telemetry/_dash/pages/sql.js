// SQL queries, their results as a table, and the history.

import { h, put, say } from "./dom.js";
import { count, plural } from "./words.js";
import { virtual } from "./virtual.js";
import { NotLetIn, query } from "./wire.js";

const KEPT = "mesh-queries";
const KEPT_MAX = 20;
const FIRST = "select display_name, class, count(*) as ranks\nfrom actors\ngroup by display_name, class\norder by ranks desc\nlimit 100";
const COLUMN_MAX = 60;

export function open(root, page, wanted) {
  const editor = h("textarea", { class: "sql", "aria-label": "SQL", spellcheck: false });
  editor.value = wanted.get("sql") ?? kept()[0] ?? FIRST;
  const run = h("button", { class: "main", type: "button", onclick: ask, title: "Ctrl+Enter" }, "Run");
  const state = h("span", { class: "muted", role: "status" });
  const result = h("div", { class: "fill" });
  result.style.display = "flex";
  result.style.flexDirection = "column";
  const tables = h("div", { class: "list-of-tables" });
  const before = h("select", { "aria-label": "Last queries", onchange: () => { editor.value = before.value || editor.value; before.value = ""; } });
  const saves = ["csv", "json"].map((kind) => h("button", { type: "button", disabled: true, onclick: () => save(kind) }, kind.toUpperCase()));
  let answer = null;
  let close = () => {};

  async function ask() {
    const sql = editor.value.trim();
    if (!sql) return;
    run.disabled = true;
    say(state, "asking");
    const began = performance.now();
    try {
      answer = await query(sql);
      keep(sql);
      listKept();
      const failed = answer.coverage.failed.map((one) => `${one.host} (${one.cause})`);
      const took = Math.round(performance.now() - began);
      const of = failed.length ? `, without ${failed.join(", ")}` : ` of ${plural(answer.coverage.answered.length, "host")}`;
      put(state, `${plural(answer.rows.length, "row")} in ${took} ms`, h("span", { class: failed.length ? "bad" : "" }, of));
      show();
    } catch (error) {
      answer = null;
      say(state, "");
      if (!page.isOpen()) return;
      put(result, h("pre", { class: "bad", role: "alert" }, error instanceof NotLetIn ? "the token is not right: reload the page with the right one" : error.message));
    }
    run.disabled = false;
    for (const button of saves) button.disabled = !answer;
  }
  function show() {
    close();
    const made = resultTable(answer);
    put(result, made.elements);
    close = made.close;
  }
  function save(kind) {
    const text = kind === "csv" ? csv(answer) : JSON.stringify(answer.rows, null, 1);
    const link = h("a", { href: URL.createObjectURL(new Blob([text])), download: `answer.${kind}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  function listKept() {
    put(before, h("option", { value: "" }, "Last queries"), kept().map((sql) => h("option", { value: sql }, sql.replace(/\s+/g, " ").slice(0, 70))));
  }
  editor.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    ask();
  });
  listKept();
  before.style.maxWidth = "200px";
  const split = h(
    "div",
    { class: "split" },
    h("section", { class: "panel scroll", "aria-label": "Tables" }, h("h2", {}, "Tables"), tables),
    h("section", { class: "panel", "aria-label": "Query" }, editor, h("div", { class: "tools" }, run, before, h("span", { class: "grow" }), state, "Save", saves), result),
  );
  split.style.gridTemplateColumns = "260px minmax(0, 1fr)";
  put(root, split);
  page.ask("tables").then((value) => {
    if (!value) return;
    put(tables, value.rows.map((table) => tableOf(table, editor)));
    page.ready("sql");
  });
  return () => close();
}

function tableOf(table, editor) {
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

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? [];
  } catch {
    return [];
  }
}

function keep(sql) {
  localStorage.setItem(KEPT, JSON.stringify([sql, ...kept().filter((one) => one !== sql)].slice(0, KEPT_MAX)));
}
