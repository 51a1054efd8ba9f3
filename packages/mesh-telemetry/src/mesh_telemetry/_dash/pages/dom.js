// Elements, made of words: what comes from the program only ever becomes text.

const SVG = "http://www.w3.org/2000/svg";

/** Makes an element: `h("td", { class: "number", onclick }, "text", child)`. */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Makes an element of SVG. */
export function s(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** Puts other children into an element; null and false are none. */
export function put(parent, ...children) {
  parent.replaceChildren(...nodes(children));
  return parent;
}

/** Sets the text of an element, if it is another one. */
export function say(element, text) {
  const words = String(text);
  if (element.textContent !== words) element.textContent = words;
}

/** Makes a table: heads as `["name", "class"]`, each row a list of children of its cells. */
export function table(heads, rows, label) {
  const kinds = heads.map((head) => head[1] ?? "");
  return h(
    "table",
    { "aria-label": label },
    h("thead", {}, h("tr", {}, heads.map(([name, kind]) => h("th", { class: kind, scope: "col" }, name)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, at) => h("td", { class: kinds[at] }, cell))))),
  );
}

/** Makes a word with a colour that says what it means. */
export function tag(word) {
  return h("span", { class: `tag ${/^[a-z]+$/.test(word) ? word : ""}` }, word);
}

/** Runs a function once for many calls, a moment after the last. */
export function settled(work, wait_ms = 200) {
  let timer = 0;
  return (...words) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...words), wait_ms);
  };
}

/** Gives colours of the style sheet, for what is drawn. */
export function colours(...names) {
  const probe = h("span", { hidden: true });
  document.body.append(probe);
  const found = {};
  for (const name of names) {
    // Only what an element has is the colour of this theme.
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
