// Failures of actors and processes; equal failures of one mesh are one row.

import { h, table } from "./dom.js";
import { clock, count } from "./format.js";
import { SIGNS } from "./states.js";

const RANKS_MAX = 6;

/** Creates the list of failures, latest first. */
export function failureTable(rows) {
  if (!rows.length) return h("p", { class: "empty" }, "No failures.");
  return table(
    [["Time", "tight"], ["Object", "name"], ["Reason"]],
    grouped(rows).map((group) => {
      const { timestamp_us, kind, reason, cause } = group[0];
      return [
        clock(timestamp_us, 0),
        [h("div", {}, h("span", { class: "tag failed" }, `${SIGNS.failed} ${kind}`), " ", objectName(group)), group.length > 1 ? h("div", { class: "muted" }, `${count(group.length)} ranks`) : null],
        [h("div", { class: "reason" }, reason ?? "unknown"), cause ? h("div", { class: "muted" }, "caused by ", cause) : null],
      ];
    }),
    "Failures",
  );
}

function grouped(rows) {
  const groups = new Map();
  for (const row of rows) {
    const key = JSON.stringify([row.kind, row.mesh_id ?? row.mesh, row.reason, row.cause]);
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  return [...groups.values()];
}

function objectName(group) {
  const { kind, mesh } = group[0];
  if (kind === "host") return mesh;
  const ranks = [...new Set(group.map((row) => row.rank))].sort((one, other) => one - other);
  const shown = ranks.length > RANKS_MAX ? [...ranks.slice(0, RANKS_MAX), "…"] : ranks;
  return `${mesh}[${shown.join(", ")}]`;
}
