// Draws the rows of the timeline on a canvas.

import { colours } from "./dom.js";
import { clock, duration } from "./format.js";
import { endOf, linkedCalls } from "./lanes.js";
import { SIGNS } from "./states.js";

export const LEFT = 190;
export const TOP = 26;
const FONT = "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif";
const TICK = 3;
const ARROW = 5;

/** Draws all rows; `hovered` is the bar under the pointer, or undefined. */
export function paintLanes(canvas, stage, layout, view, hovered) {
  if (!view || !stage.clientWidth) return;
  const ratio = window.devicePixelRatio || 1;
  const width = stage.clientWidth - 28;
  const height = Math.max(layout.height + 6, 80);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  canvas.style.width = `${width}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const palette = colours("line", "text", "muted", "accent", "second", "bad", "panel", "raised", "ground");
  const at = (us) => LEFT + ((us - view.from) / (view.until - view.from)) * (width - LEFT);
  const page = { context, palette, at, width, height, now: view.until };
  ruler(page, view);
  heads(page, layout);
  context.save();
  context.beginPath();
  context.rect(LEFT, TOP, width - LEFT, height);
  context.clip();
  for (const bar of layout.bars) (bar.kind === "call" ? drawCall : drawSpan)(page, bar, bar === hovered);
  if (hovered?.kind === "call") arrows(page, layout, hovered);
  context.restore();
}

function heads({ context, palette, width }, layout) {
  for (const head of layout.heads) {
    context.fillStyle = palette.raised;
    context.fillRect(0, head.y, width, head.height);
    context.fillStyle = palette.text;
    context.font = `600 12px ${FONT}`;
    const title = fitted(context, head.title, LEFT - 16);
    context.fillText(title, 8, head.y + 17);
    const x = Math.max(LEFT, context.measureText(title).width + 24);
    context.font = `12px ${FONT}`;
    context.fillStyle = palette.muted;
    const words = head.calls ? `${head.calls} calls` : "";
    context.fillText(words, x, head.y + 17);
    if (!head.failures) continue;
    context.fillStyle = palette.bad;
    context.fillText(`${SIGNS.failed} ${head.failures} failed`, x + context.measureText(words).width + 12, head.y + 17);
  }
  context.font = `12px ${FONT}`;
  for (const row of layout.rows) {
    context.fillStyle = palette.text;
    context.fillText(fitted(context, `${row.actor.display_name}[${row.actor.rank}]`, LEFT - 24), 16, row.y + 20);
    context.fillStyle = palette.line;
    context.fillRect(0, row.y + row.height - 1, width, 1);
  }
}

function drawCall({ context, palette, at, width, now }, { item, y, height }, isHovered) {
  const x = at(item.timestamp_us);
  const end = at(Math.min(endOf(item), now));
  if (end < LEFT - TICK || x > width) return;
  context.fillStyle = item.is_error ? palette.bad : palette.accent;
  if (!item.has_reply) {
    // Only the arrival of a message without a reply is recorded.
    context.fillRect(x, y, TICK, height);
    return;
  }
  const active = item.active_us === null ? end : at(item.active_us);
  context.globalAlpha = 0.35;
  context.fillRect(x, y + 3, Math.max(0, active - x), height - 6);
  context.globalAlpha = 1;
  if (item.active_us !== null) context.fillRect(active, y, Math.max(1.5, end - active), height);
  if (isHovered) {
    context.strokeStyle = palette.text;
    context.lineWidth = 1.5;
    context.strokeRect(x - 1, y - 1, Math.max(3, end - x) + 2, height + 2);
  }
  if (item.active_us === null) return;
  const words = `${item.is_error ? `${SIGNS.failed} ` : ""}${item.end_us === null ? "running" : duration(item.end_us - item.active_us)}`;
  context.font = `10.5px ${FONT}`;
  if (context.measureText(words).width + 8 > end - Math.max(active, LEFT)) return;
  context.fillStyle = palette.panel;
  context.fillText(words, Math.max(active, LEFT) + 4, y + height - 5);
}

function drawSpan({ context, palette, at, width, now }, { item, y, height }, isHovered) {
  const x = at(item.timestamp_us);
  const end = at(Math.min(endOf(item), now));
  if (end < LEFT || x > width) return;
  context.fillStyle = item.is_error ? palette.bad : palette.second;
  context.globalAlpha = isHovered ? 1 : 0.8;
  context.fillRect(x, y, Math.max(1, end - x), height);
  context.globalAlpha = 1;
}

/** Draws an arrow from the caller of a call, and arrows to the calls that it sent. */
function arrows(page, layout, bar) {
  const { caller, callees } = linkedCalls(layout.bars, bar);
  if (caller) arrow(page, caller, bar);
  for (const callee of callees) arrow(page, bar, callee);
}

function arrow({ context, palette, at }, from, to) {
  const x = at(to.item.timestamp_us);
  const isDown = to.y > from.y;
  const start = isDown ? from.y + from.height : from.y;
  const end = isDown ? to.y : to.y + to.height;
  const sign = isDown ? 1 : -1;
  const bend = Math.min(28, Math.abs(end - start) / 2);
  context.strokeStyle = palette.text;
  context.fillStyle = palette.text;
  context.lineWidth = 1.5;
  context.beginPath();
  context.moveTo(x - 14, start);
  context.bezierCurveTo(x - 14, start + sign * bend, x, end - sign * (bend + ARROW), x, end - sign * ARROW);
  context.stroke();
  context.beginPath();
  context.moveTo(x, end);
  context.lineTo(x - ARROW, end - sign * ARROW * 1.6);
  context.lineTo(x + ARROW, end - sign * ARROW * 1.6);
  context.fill();
}

function ruler({ context, palette, at, width, height }, view) {
  const rough = (view.until - view.from) / 8;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= rough);
  context.font = `11px ${FONT}`;
  for (let us = Math.ceil(view.from / step) * step; us < view.until; us += step) {
    const x = Math.round(at(us));
    context.fillStyle = palette.line;
    context.fillRect(x, TOP - 6, 1, height);
    context.fillStyle = palette.muted;
    const words = step >= 1e6 ? clock(us, 0) : `${clock(us, 3)}${step < 1000 ? ` ${Math.round(us % 1000)} µs` : ""}`;
    const half = context.measureText(words).width / 2;
    if (x - half > LEFT && x + half < width) context.fillText(words, x - half, 12);
  }
}

function fitted(context, words, width) {
  if (context.measureText(words).width <= width) return words;
  let length = words.length;
  while (length > 1 && context.measureText(`${words.slice(0, length)}…`).width > width) length -= 1;
  return `${words.slice(0, length)}…`;
}
