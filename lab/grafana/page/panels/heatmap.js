// Heatmaps: of a histogram's buckets, or of how many series lie in each part of the range.

import { element } from "../dom.js";
import { format } from "../units.js";
import { clockText } from "../time.js";

const BUCKETS = 12;
const LEFT = 64;
const BOTTOM = 20;

export function draw(body, { panel, frames, context }) {
  const series = frames.filter(({ isLog }) => !isLog).flatMap((frame) => frame.fields.filter(({ type }) => type === "number").map((field) => ({ field, frame })));
  if (!series.length) return false;
  const { columns, labels } = panel.options?.calculate ? counted(series, panel) : histogram(series, panel);
  const canvas = element("canvas");
  body.append(element("div.chart", {}, canvas));
  const paint = () => painted(canvas, columns, labels, context.range);
  paint();
  const watcher = new ResizeObserver(paint);
  watcher.observe(body);
  return () => watcher.disconnect();
}

const timesOf = (frame) => frame.fields.find(({ type }) => type === "time").values;
const unitOf = (panel, field) => panel.options?.yAxis?.unit ?? field.config.unit;

/** Every series counts in the bucket that contains its value. */
function counted(series, panel) {
  const values = series.flatMap(({ field }) => field.values.filter(Number.isFinite));
  const low = panel.options.yAxis?.min ?? Math.min(...values);
  const high = Math.max(panel.options.yAxis?.max ?? Math.max(...values), low + 1e-9);
  const size = (high - low) / BUCKETS;
  const columns = new Map();
  for (const { field, frame } of series) {
    timesOf(frame).forEach((time, row) => {
      if (!Number.isFinite(field.values[row])) return;
      const column = columns.get(time) ?? columns.set(time, Array(BUCKETS).fill(0)).get(time);
      column[Math.min(Math.max(Math.floor((field.values[row] - low) / size), 0), BUCKETS - 1)] += 1;
    });
  }
  return { columns, labels: Array.from({ length: BUCKETS + 1 }, (_, index) => format(low + index * size, unitOf(panel, series[0].field))) };
}

/** Buckets count everything below their bound (`le`); a cell is what lies between two of them. */
function histogram(series, panel) {
  const bound = ({ field }) => Number(field.labels.le ?? field.label);
  const buckets = [...series].sort((a, b) => bound(a) - bound(b));
  const cumulative = series.every(({ field }) => field.labels.le !== undefined);
  const columns = new Map();
  buckets.forEach(({ field, frame }, index) => {
    timesOf(frame).forEach((time, row) => {
      const column = columns.get(time) ?? columns.set(time, Array(buckets.length).fill(0)).get(time);
      column[index] = field.values[row] ?? 0;
    });
  });
  if (cumulative) for (const column of columns.values()) for (let index = column.length - 1; index > 0; index -= 1) column[index] = Math.max(column[index] - column[index - 1], 0);
  return { columns, labels: ["", ...buckets.map((one) => (Number.isFinite(bound(one)) ? format(bound(one), unitOf(panel, one.field)) : one.field.label))] };
}

function painted(canvas, columns, labels, { from, to }) {
  const { clientWidth: width, clientHeight: height } = canvas.parentElement;
  const ratio = devicePixelRatio;
  Object.assign(canvas, { width: width * ratio, height: height * ratio });
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  const times = [...columns.keys()].sort((a, b) => a - b);
  const gap = Math.min(...times.slice(1).map((time, index) => time - times[index]), to - from);
  const x = (time) => LEFT + ((time - from) / (to - from)) * (width - LEFT - 8);
  const rows = labels.length - 1;
  const cell = (height - BOTTOM - 8) / rows;
  const most = Math.max(...[...columns.values()].flat(), 1);
  for (const time of times) {
    columns.get(time).forEach((count, row) => {
      if (!count) return;
      ctx.fillStyle = `hsl(${48 - (count / most) * 40} 90% ${25 + (count / most) * 35}%)`;
      ctx.fillRect(x(time), height - BOTTOM - (row + 1) * cell, Math.max(x(time + gap) - x(time) - 0.5, 1), cell - 1);
    });
  }
  Object.assign(ctx, { fillStyle: "#9fa0ab", font: "11px system-ui, sans-serif", textAlign: "right", textBaseline: "middle" });
  const every = Math.ceil((rows + 1) / Math.max(Math.floor(height / 24), 1));
  labels.forEach((label, index) => index % every === 0 && ctx.fillText(label, LEFT - 6, height - BOTTOM - index * cell));
  ctx.textAlign = "center";
  for (const share of [0.1, 0.3, 0.5, 0.7, 0.9]) ctx.fillText(clockText(from + share * (to - from)).slice(0, 5), x(from + share * (to - from)), height - 8);
}
