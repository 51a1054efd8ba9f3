// The output of processes as it arrives.

import { debounce, h, setChildren, setText } from "./dom.js";
import { clock, plural } from "./format.js";
import { virtual } from "./virtual.js";

export function open(root, page, wanted) {
  const fields = {
    text: h("input", { type: "search", placeholder: "Filter by text", "aria-label": "Text" }),
    mesh: h("select", { "aria-label": "Process mesh" }, h("option", { value: "" }, "all meshes")),
    proc: h("input", { placeholder: "Process, as 0.3", "aria-label": "Process", size: 14 }),
    stream: choice("Stream", { "": "both streams", stdout: "stdout", stderr: "stderr" }),
    severity: choice("Severity", { "": "all lines", warning: "warnings and errors", error: "errors" }),
  };
  for (const [name, field] of Object.entries(fields)) if (name !== "mesh") field.value = wanted.get(name) ?? "";
  const follow = h("input", { type: "checkbox", checked: true });
  const found = h("span", { class: "muted" });
  const loadButton = h("button", { type: "button", onclick: loadOlder }, "Load older");
  let rows = [];
  let older = [];
  let end = () => {};
  let known = "";
  const at = (index) => (index < older.length ? older[index] : rows[index - older.length]);
  const list = virtual({
    label: "Lines",
    kind: "lines",
    height: 22,
    row(index) {
      const row = at(index);
      if (!row) return [];
      return {
        class: row.stream === "stderr" ? "is-err" : "",
        children: [
          h("span", { class: "at" }, clock(row.timestamp_us)),
          h("span", { class: "from", title: `${row.host}, process ${row.proc}` }, `${row.mesh}[${row.rank}]`),
          h("span", { class: "line", title: row.line.length > 100 ? row.line : undefined }, row.line),
        ],
      };
    },
  });
  list.element.addEventListener("scroll", () => {
    // Scrolling up stops following the end; scrolling back to the end resumes it.
    follow.checked = list.isAtEnd();
  }, { passive: true });
  follow.addEventListener("change", () => follow.checked && show());

  function filters() {
    return Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.value.trim()]).filter((one) => one[1]));
  }
  function show() {
    const isFollowed = follow.checked;
    list.show(older.length + rows.length);
    if (isFollowed) list.toEnd();
  }
  function start() {
    end();
    older = [];
    rows = [];
    follow.checked = true;
    page.setArguments("logs", filters());
    end = page.subscribe("logs", filters(), (value) => {
      meshes(value.meshes);
      // While the user reads older lines, lines that leave the live window are kept.
      if (!follow.checked || older.length) keepOlder(value.rows[0]);
      rows = value.rows;
      setText(found, `${plural(value.count, "line")} stored`);
      loadButton.disabled = older.length + rows.length >= value.count;
      show();
      page.ready("logs");
    });
  }
  function keepOlder(first) {
    if (!first) return;
    older.push(...rows.filter((row) => row.timestamp_us < first.timestamp_us));
    if (older.length > 50000) older = older.slice(-40000);
  }
  async function loadOlder() {
    const first = at(0);
    if (!first) return;
    follow.checked = false;
    const value = await page.fetch("logs", { ...filters(), before: first.timestamp_us, limit: 1000 });
    if (!value) return;
    older = [...value.rows, ...older];
    list.show(older.length + rows.length);
    list.element.scrollTop += value.rows.length * 22;
    loadButton.disabled = !value.rows.length;
  }
  function meshes(names) {
    const now = names.join("\n");
    if (now === known) return;
    known = now;
    const current = fields.mesh.value || wanted.get("mesh") || "";
    setChildren(fields.mesh, h("option", { value: "" }, "all meshes"), names.map((name) => h("option", { value: name }, name)));
    fields.mesh.value = names.includes(current) ? current : "";
  }
  for (const field of Object.values(fields)) field.addEventListener("input", debounce(start));
  setChildren(
    root,
    h("div", { class: "tools" }, Object.values(fields), h("label", {}, follow, "Follow"), loadButton, h("span", { class: "grow" }), found),
    h("section", { class: "panel fill", "aria-label": "Lines" }, list.element),
  );
  list.element.style.height = "100%";
  start();
  return () => {
    end();
    list.close();
  };
}

function choice(name, words) {
  return h("select", { "aria-label": name }, Object.entries(words).map(([value, text]) => h("option", { value }, text)));
}
