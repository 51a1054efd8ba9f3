// A line chart of the last minute.

import { h, s, setText } from "./dom.js";
import { short } from "./format.js";

/** Creates a chart with a name; `show(values)` draws values. */
export function chart(name, unit) {
  const area = s("path", { class: "area" });
  const stroke = s("path", { class: "stroke" });
  const svg = s("svg", { class: "spark", viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img" }, area, stroke);
  const last = h("span", {});
  const most = h("span", {});
  const element = h(
    "section",
    { class: "panel", "aria-label": name },
    h("h2", {}, name),
    svg,
    h("div", { class: "caption" }, h("span", {}, "60 s ago"), most, last),
  );
  return {
    element,
    show(values) {
      const top = Math.max(1, ...values);
      const points = values.map((value, at) => `${(at / (values.length - 1)) * 100},${38 - (value / top) * 34}`);
      stroke.setAttribute("d", `M${points.join("L")}`);
      area.setAttribute("d", `M0,40L${points.join("L")}L100,40Z`);
      svg.setAttribute("aria-label", `${name}: ${values.at(-1)} ${unit} now, maximum ${top}`);
      setText(most, `max ${short(Math.max(...values))}`);
      setText(last, `now ${short(values.at(-1))} ${unit}`);
    },
  };
}
