// Saved cases of recorded actors that failed, and the messages of one.

import { debounce, h, setChildren, setText, showChanges, table } from "./dom.js";
import { bytes, count, date, plural } from "./format.js";

export function open(root, page, wanted) {
  const field = h("input", { type: "search", placeholder: "Actor, failure or file", "aria-label": "Filter cases", value: wanted.get("text") ?? "" });
  const found = h("span", { class: "muted" });
  const rows = h("div", { class: "scroll fill" });
  const side = h("section", { class: "panel scroll", "aria-label": "Case" }, h("p", { class: "empty" }, "Select a case."));
  let last = null;
  let selected = wanted.get("file") ?? "";

  const showRows = showChanges(rows, (shown, current, value) => {
    if (!value.rows.length) return emptyState(value);
    if (!shown.length) return h("p", { class: "empty" }, "No case matches the filter.");
    return caseTable(shown, current, select);
  });
  function show() {
    const words = field.value.trim().toLowerCase();
    const shown = last.rows.filter((row) => [row.actor, row.host, row.failure, row.path, row.error].some((text) => text.toLowerCase().includes(words)));
    setText(found, last.rows.length ? `${plural(shown.length, "case")} in ${last.folder}` : "");
    showRows(shown, selected, last);
  }
  function storeArguments() {
    page.setArguments("cases", Object.fromEntries(Object.entries({ text: field.value.trim(), file: selected }).filter((one) => one[1])));
  }
  async function select(file) {
    selected = file;
    storeArguments();
    if (last) show();
    await page.fetch("case", { file }, (value) => {
      // Another case may have been selected before the reply.
      if (file !== selected) return;
      setChildren(side, detail(file, value));
      side.scrollTop = 0;
    });
  }
  field.addEventListener("input", debounce(() => {
    storeArguments();
    if (last) show();
  }));
  setChildren(
    root,
    h(
      "div",
      { class: "split stacked" },
      h("section", { class: "panel", "aria-label": "Cases" }, h("div", { class: "tools" }, h("h1", {}, "Cases"), field, found), rows),
      side,
    ),
  );
  if (selected) select(selected);
  return page.subscribe("cases", {}, (value) => {
    last = value;
    show();
    page.ready("cases");
  });
}

function caseTable(rows, current, select) {
  const made = table(
    [["Time", "tight"], ["Actor", "name"], ["Failure"], ["Messages", "number tight"], ["Size", "number tight"], ["File", "mono"]],
    rows.map((row) => [
      date(row.saved_us),
      h("button", { class: "link", type: "button", "aria-pressed": String(row.file === current) }, row.actor || "–"),
      [row.error ? h("span", { class: "bad" }, row.error) : row.failure, row.is_earlier && h("span", { class: "tag" }, "earlier program")],
      count(row.messages),
      bytes(row.bytes),
      row.path,
    ]),
    "Saved cases",
  );
  made.querySelectorAll("tbody tr").forEach((element, at) => {
    element.classList.add("choice");
    element.classList.toggle("is-current", rows[at].file === current);
    // The button makes rows reachable by the keyboard; its clicks arrive here, too.
    element.addEventListener("click", () => select(rows[at].file));
  });
  return made;
}

function detail(file, value) {
  if (value.error) return [h("h1", {}, file), h("p", { class: "bad", role: "alert" }, value.error)];
  return [
    h("h1", {}, file),
    h("p", {}, "Replay it on any machine that has this file: ", h("code", { class: "mono", "data-part": "command" }, value.command)),
    h("p", { class: "note" }, "A replay runs code and opens pickles from the case. This page only reads it, as ", h("code", { class: "mono" }, "mesh case show"), " does."),
    h("pre", { "data-part": "report" }, value.text),
  ];
}

function emptyState(value) {
  const place = h("code", { class: "mono" }, value.folder);
  if (value.is_recording) return h("p", { class: "empty" }, "Actors are recorded, and none has failed. A case will be saved in ", place, ".");
  return h(
    "div",
    { class: "empty", "data-part": "no-recording" },
    h("p", {}, "There are no cases in ", place, ", and this program does not record its actors. To record them, set ", h("code", { class: "mono" }, "MESH_RECORD=*"), " in the environment of the program, or call this before it starts processes:"),
    h("pre", {}, "from mesh_core.recording import record\n\nrecord()"),
  );
}
