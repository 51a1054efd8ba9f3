// Creation of DOM elements: data of the program is only inserted as text, never as HTML.

import { SIGNS } from "./states.js";

const SVG = "http://www.w3.org/2000/svg";

/** Creates an element: `h("td", { class: "number", onclick }, "text", child)`. */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Creates an SVG element. */
export function s(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** Replaces the children of an element; null and false are skipped. */
export function setChildren(parent, ...children) {
  parent.replaceChildren(...nodes(children));
  return parent;
}

/** Sets the text of an element if it has changed. */
export function setText(element, text) {
  const words = String(text);
  if (element.textContent !== words) element.textContent = words;
}

/** Creates a table: heads are `["name", "class"]`, each row is a list of the cells' children. */
export function table(heads, rows, label) {
  const kinds = heads.map((head) => head[1] ?? "");
  return h(
    "table",
    { "aria-label": label },
    h("thead", {}, h("tr", {}, heads.map(([name, kind]) => h("th", { class: kind, scope: "col" }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) => h("td", { class: kinds[at] }, cell))))),
  );
}

/** Creates a word whose colour, and sign if any, show its meaning. */
export function tag(word, sign = SIGNS[word]) {
  const shown = sign && h("span", { class: "sign", "aria-hidden": "true" }, sign);
  return h("span", { class: `tag ${/^[a-z]+$/.test(word) ? word : ""}` }, shown, word);
}

/** Returns a function that replaces the children of an element if the value has changed. */
export function showChanges(parent, make) {
  let shown = "";
  return (...values) => {
    const now = JSON.stringify(values);
    if (now !== shown) setChildren(parent, make(...values));
    shown = now;
  };
}

/** Debounces a function: it runs once, a moment after the last call. */
export function debounce(work, wait_ms = 200) {
  let timer = 0;
  return (...words) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...words), wait_ms);
  };
}

/** Returns colours of the style sheet for drawing on a canvas. */
export function colours(...names) {
  const probe = h("span", { hidden: true });
  document.body.append(probe);
  const found = {};
  for (const name of names) {
    // Only the computed style of an element has the colour of the current theme.
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}
