// A bar that shows a part of a whole, with its text above.

import { h, setText } from "./dom.js";

const HIGH = 0.9;

/** Creates a bar; `part` is a fraction, or null if it is not known. */
export function meter(label, part, words) {
  if (part === null) return h("div", { class: "meter is-unknown" }, words);
  const percent = Math.round(Math.min(1, Math.max(0, part)) * 100);
  const bar = h("i", { class: part > HIGH ? "is-high" : "" });
  bar.style.width = `${percent}%`;
  const element = h("div", { class: "meter", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": percent });
  const text = h("span", {});
  setText(text, words);
  element.append(text, h("div", {}, bar));
  return element;
}
