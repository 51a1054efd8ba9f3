// The rows of the timeline: calls and spans of actors, grouped by endpoint.

const HEAD = 26;
const BAR = 18;
const SPAN = 6;
const GAP = 2;
const PAD = 7;
const CALL_LINES_MAX = 4;
const SPAN_LINES_MAX = 2;
const NO_CALL = "Spans outside calls";

/**
 * Arranges a value of the topic from top to bottom.
 *
 * Returns `heads` with `{ title, calls, failures, y, height }`, `rows` with `{ actor, y, height }`,
 * `bars` with `{ item, kind, row, y, height }`, where `kind` is `call` or `span`, and the whole `height`.
 */
export function arrangedLanes(value, top) {
  const layout = { heads: [], rows: [], bars: [], height: top };
  const actors = new Map(value.actors.map((actor) => [actor.id, actor]));
  for (const [title, items] of groupsOf(value, actors)) {
    layout.heads.push({ title, calls: items.calls.length, failures: items.calls.filter((call) => call.is_error).length, y: layout.height, height: HEAD });
    layout.height += HEAD;
    for (const actor of value.actors) addRow(layout, actor, items);
  }
  return layout;
}

function groupsOf(value, actors) {
  const groups = new Map();
  const itemsOf = (title) => groups.get(title) ?? groups.set(title, { calls: [], spans: [] }).get(title);
  const titles = new Map();
  for (const call of value.calls) {
    const kind = actors.get(call.actor_id)?.class;
    const title = `${kind ? `${kind}.` : ""}${call.endpoint ?? "messages"}`;
    titles.set(call.id, title);
    itemsOf(title).calls.push(call);
  }
  for (const span of value.spans) itemsOf(titles.get(span.message_id) ?? NO_CALL).spans.push(span);
  const order = (title) => (title === NO_CALL ? 1 : 0);
  return [...groups].sort(([one], [other]) => order(one) - order(other) || one.localeCompare(other));
}

function addRow(layout, actor, items) {
  const calls = items.calls.filter((call) => call.actor_id === actor.id);
  const spans = items.spans.filter((span) => span.actor_id === actor.id);
  if (!calls.length && !spans.length) return;
  const row = { actor, y: layout.height, height: 0 };
  const callLines = stacked(calls, CALL_LINES_MAX);
  const spanLines = stacked(spans, SPAN_LINES_MAX);
  const add = (kind, lines, y, height) => {
    for (const [item, line] of lines.places) layout.bars.push({ item, kind, row, y: y + line * (height + GAP), height });
    return y + lines.count * (height + GAP);
  };
  const below = add("span", spanLines, add("call", callLines, row.y + PAD, BAR), SPAN);
  row.height = Math.max(below - row.y + PAD - GAP, BAR + 2 * PAD);
  layout.rows.push(row);
  layout.height += row.height;
}

/** Assigns items that overlap to different lines. */
function stacked(items, count_max) {
  const places = new Map();
  const ends = [];
  for (const item of [...items].sort((one, other) => one.timestamp_us - other.timestamp_us)) {
    const free = ends.findIndex((end) => end <= item.timestamp_us);
    const line = free >= 0 ? free : Math.min(ends.length, count_max - 1);
    ends[line] = Math.max(ends[line] ?? 0, endOf(item));
    places.set(item, line);
  }
  return { places, count: ends.length };
}

/** Returns when an item ended; a call without a reply has no known end. */
export function endOf(item) {
  if (item.end_us !== null) return item.end_us;
  return item.has_reply === false ? item.timestamp_us : Infinity;
}

/** Returns the calls that are linked to a call: the call that sent it, and the calls that it sent. */
export function linkedCalls(bars, bar) {
  const isSentBy = (call, other) =>
    call.from_actor_id === other.actor_id && other.active_us !== null && other.active_us <= call.timestamp_us && endOf(other) >= call.timestamp_us;
  const calls = bars.filter((one) => one.kind === "call" && one !== bar);
  return {
    caller: calls.findLast((one) => isSentBy(bar.item, one.item)),
    callees: calls.filter((one) => isSentBy(one.item, bar.item)),
  };
}
