// A virtual list: only the visible rows are part of the page.

import { h } from "./dom.js";

const EXTRA_ROWS = 6;

/**
 * Creates a list. `row(at)` returns the children of a row, or `{ class, indent, children }`.
 * `choose(at)` is called when a row is clicked or Enter is pressed, and `expand(at, isOpen)` for
 * the right and left arrow keys.
 */
export function virtual({ label, height = 28, row, choose, expand, kind = "" }) {
  const spacer = h("div", { class: "spacer", role: "presentation" });
  const element = h("div", { class: `list ${kind}`, tabindex: 0, role: choose ? "listbox" : "list", "aria-label": label }, spacer);
  const name = `list-${Math.random().toString(36).slice(2)}`;
  let length = 0;
  let chosen = -1;
  let waiting = 0;

  function draw() {
    waiting = 0;
    const first = Math.max(0, Math.floor(element.scrollTop / height) - EXTRA_ROWS);
    const last = Math.min(length, Math.ceil((element.scrollTop + element.clientHeight) / height) + EXTRA_ROWS);
    const rows = [];
    for (let at = first; at < last; at += 1) rows.push(rowElement(at));
    spacer.replaceChildren(...rows);
  }

  function rowElement(at) {
    const content = row(at);
    const options = content.children ? content : { children: content };
    const element = h(
      "div",
      {
        id: `${name}-${at}`,
        class: `row ${options.class ?? ""}`,
        role: choose ? "option" : "listitem",
        "aria-selected": choose ? String(at === chosen) : undefined,
        "aria-setsize": length,
        "aria-posinset": at + 1,
      },
      options.children,
    );
    element.style.top = `${at * height}px`;
    element.style.height = `${height}px`;
    if (options.indent) element.style.paddingLeft = `${8 + options.indent * 18}px`;
    return element;
  }

  function refresh() {
    waiting ||= requestAnimationFrame(draw);
  }

  function pick(at) {
    move(at);
    choose(at);
  }

  function move(at) {
    if (!length) return;
    chosen = Math.max(0, Math.min(length - 1, at));
    element.setAttribute("aria-activedescendant", `${name}-${chosen}`);
    const top = chosen * height;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + height > element.scrollTop + element.clientHeight) element.scrollTop = top + height - element.clientHeight;
    refresh();
  }

  function key(event) {
    const page = Math.max(1, Math.floor(element.clientHeight / height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -length, End: length };
    if (event.key in steps) move(chosen + steps[event.key]);
    else if (event.key === "Enter" || event.key === " ") pick(Math.max(0, chosen));
    else if (expand && event.key === "ArrowRight") expand(chosen, true);
    else if (expand && event.key === "ArrowLeft") expand(chosen, false);
    else return;
    event.preventDefault();
  }

  element.addEventListener("scroll", refresh, { passive: true });
  if (choose) {
    element.addEventListener("keydown", key);
    // By position, because a row may be replaced between the press and the release of the button.
    element.addEventListener("click", (event) => {
      const at = Math.floor((event.clientY - spacer.getBoundingClientRect().top) / height);
      if (at >= 0 && at < length) pick(at);
    });
  }
  const resized = new ResizeObserver(refresh);
  resized.observe(element);
  return {
    element,
    refresh,
    /** Sets the number of rows. */
    show(count) {
      length = count;
      if (chosen >= count) chosen = count - 1;
      spacer.style.height = `${count * height}px`;
      refresh();
    },
    select(at) {
      chosen = at;
      refresh();
    },
    toEnd() {
      element.scrollTop = length * height;
    },
    toStart() {
      element.scrollTop = 0;
    },
    isAtEnd: () => element.scrollTop + element.clientHeight >= length * height - height,
    close: () => resized.disconnect(),
  };
}

/** Loads rows of a topic in pages on first access; `changed()` is called after each load. */
export function paged(fetchPage, changed, length = 200) {
  let pages = new Map();
  let generation = 0;
  let count = 0;
  async function load(at) {
    const mine = generation;
    pages.set(at, null);
    const value = await fetchPage(at * length, length);
    if (mine !== generation) return;
    if (!value) {
      pages.delete(at);
      return;
    }
    pages.set(at, value.rows);
    count = value.count;
    changed();
  }
  return {
    get count() {
      return count;
    },
    /** Returns a row, or undefined until it is loaded. */
    at(index) {
      const page = Math.floor(index / length);
      const rows = pages.get(page);
      if (rows === undefined) load(page);
      return rows?.[index % length];
    },
    /** Reloads from the start with the current arguments. */
    restart() {
      generation += 1;
      pages = new Map();
      return load(0);
    },
  };
}
