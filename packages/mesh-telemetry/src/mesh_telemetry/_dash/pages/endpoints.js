// The endpoints that were called in the last minute, and the latest failed calls.

import { h, table, tag } from "./dom.js";
import { clock, count, duration, rate } from "./format.js";
import { SIGNS } from "./states.js";

/** Creates the table of endpoints. */
export function endpointTable(value) {
  if (!value.endpoints.length) return h("p", { class: "empty" }, "No calls in the last minute.");
  const latency = (us) => (us === null ? "–" : duration(us));
  return table(
    [["Endpoint"], ["Calls/s", "number tight"], ["p50", "number tight"], ["p99", "number tight"], ["Failures", "number tight"]],
    value.endpoints.map((row) => [
      [h("span", { class: "muted" }, row.class ? `${row.class}.` : ""), row.endpoint],
      rate(row.calls / value.window_s),
      latency(row.p50_us),
      latency(row.p99_us),
      row.failures ? h("span", { class: "bad" }, `${SIGNS.failed} ${count(row.failures)}`) : h("span", { class: "muted" }, "0"),
    ]),
    "Endpoints",
  );
}

/** Creates the list of failed calls, latest first. */
export function failedCallTable(rows) {
  if (!rows.length) return h("p", { class: "empty" }, "No failed calls.");
  return table(
    [["Time", "tight"], ["Call"], ["Callee"], ["", "tight"]],
    rows.map((row) => [
      clock(row.timestamp_us, 0),
      [h("span", { class: "muted" }, row.class ? `${row.class}.` : ""), row.endpoint],
      row.id ? h("a", { href: `#/explorer?id=${row.id}` }, `${row.display_name}[${row.rank}]`) : `process ${row.proc}`,
      tag(row.status, SIGNS.failed),
    ]),
    "Failed calls",
  );
}
