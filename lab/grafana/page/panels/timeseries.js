// Lines, areas, bars and points over time, drawn by uPlot.

import { calcTitle, calculate } from "../calcs.js";
import { withAlpha } from "../colors.js";
import { element } from "../dom.js";
import { display, steps } from "../fields.js";
import { dateText } from "../time.js";
import { format } from "../units.js";

const GRID = "rgb(204 204 220 / 0.08)";
const INK = "#9fa0ab";
const FONT = "11px system-ui, sans-serif";
const IEC_STEPS = Array.from({ length: 60 }, (_, power) => 2 ** power); // 16 GiB and not 23.3 GiB
const NULLS_BREAK = 2; // uPlot.join: a null reaches on to the next value, also past the times of other series
const ENOUGH_LINES = 200; // more lines cannot be distinguished, and the browser stalls

/** `panel.hidden`: labels of the series that the legend has switched off, kept from one refresh to the next. */
export function draw(body, { panel, frames, context, marks, zoom }) {
  const all = frames.filter(({ isLog }) => !isLog).flatMap((frame) => frame.fields.filter(({ type }) => type === "number").map((field) => ({ field, frame })));
  const series = all.slice(0, ENOUGH_LINES);
  if (!series.length) return false;
  panel.hidden ??= new Set();
  const legendOptions = panel.options?.legend ?? {};
  const chart = element("div.chart");
  const legend = legendOptions.showLegend === false ? null : legendOf(series, legendOptions, panel.hidden, () => plot());
  const right = legendOptions.placement === "right";
  body.append(element(right ? "div.plot.right" : "div.plot", {}, chart, legend));
  if (all.length > series.length) chart.append(element("p.note", {}, `The preview draws ${series.length} of ${all.length} series.`));
  let drawn;
  function plot() {
    drawn?.destroy();
    const shown = series.filter(({ field }) => !panel.hidden.has(field.label));
    if (shown.some(({ field }) => stacked(field))) shown.reverse(); // the lowest of a stack is drawn last, over those that reach higher
    drawn = new globalThis.uPlot(optionsFor(chart, shown, panel, context, marks, zoom), columns(shown, panel), chart);
  }
  plot();
  const watcher = new ResizeObserver(() => drawn.setSize(size(chart)));
  watcher.observe(chart);
  return () => (watcher.disconnect(), drawn.destroy());
}

const size = (chart) => ({ width: Math.max(chart.clientWidth, 80), height: Math.max(chart.clientHeight, 60) });
const stacked = (field) => ["normal", "percent"].includes(field.config.custom?.stacking?.mode);

/** uPlot's data: seconds, then one column per series; stacked ones lie on those after them. */
function columns(series) {
  const tables = series.map(({ field, frame }) => withGaps(frame.fields.find(({ type }) => type === "time").values, field, frame.step));
  if (!tables.length) return [[]];
  const [times, ...values] = globalThis.uPlot.join(tables, tables.map(() => [0, NULLS_BREAK]));
  const below = {};
  for (const [index, { field }] of [...series.entries()].reverse()) {
    if (!stacked(field)) continue;
    const group = field.config.custom.stacking.group ?? "A";
    const base = (below[group] ??= Array(times.length).fill(0));
    values[index] = values[index].map((value, row) => (value === null || value === undefined ? value : (base[row] += value)));
  }
  return [times, ...values];
}

/** A point that is missing breaks the line. */
function withGaps(times, field, step) {
  const spans = field.config.custom?.spanNulls;
  const x = [];
  const y = [];
  times.forEach((time, row) => {
    const seconds = time / 1e3;
    if (step && !spans && x.length && seconds - x.at(-1) > 1.5 * step) (x.push(x.at(-1) + step), y.push(null));
    x.push(seconds);
    y.push(Number.isFinite(field.values[row]) ? field.values[row] : null);
  });
  if (step && x.length) (x.push(x.at(-1) + step), y.push(null)); // a bar is as wide as the way to the next point
  return [x, y];
}

function optionsFor(chart, series, panel, context, marks, zoom) {
  const units = [...new Set(series.map(({ field }) => scaleOf(field)))];
  if (!units.length) units.push("none");
  const firstOf = (unit) => series.find(({ field }) => scaleOf(field) === unit)?.field;
  const { from, to } = context.range;
  return {
    ...size(chart),
    legend: { show: false },
    padding: [10, 12, 0, 4],
    cursor: { sync: { key: "dashboard" }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
    scales: {
      x: { time: true, range: () => [from / 1e3, to / 1e3] },
      ...Object.fromEntries(units.map((unit) => [unit, { range: (_, least, most) => rangeOf(firstOf(unit), least, most, series, unit) }])),
    },
    axes: [
      { stroke: INK, font: FONT, grid: { stroke: GRID, width: 1 }, ticks: { show: false }, size: 30, gap: 8, values: (_, ticks) => timeLabels(ticks, to - from) },
      ...units.slice(0, 2).map((unit, index) => ({
        scale: unit, side: index ? 1 : 3, stroke: INK, font: FONT, ticks: { show: false }, grid: { show: !index, stroke: GRID, width: 1 },
        space: 28, incrs: format(1024, firstOf(unit)?.config.unit).includes("Ki") ? IEC_STEPS : undefined, size: (_, labels) => Math.max(36, ...(labels ?? []).map((label) => label.length * 6.6 + 12)),
        values: (_, ticks) => labelsOf(ticks, firstOf(unit)),
      })),
    ],
    series: [{}, ...series.map(({ field }) => lineOf(field))],
    bands: bandsOf(series),
    hooks: {
      drawClear: [(plot) => drawThresholds(plot, firstOf(units[0]), units[0], "area")],
      draw: [(plot) => drawThresholds(plot, firstOf(units[0]), units[0], "line"), (plot) => drawMarks(plot, marks)],
      setSelect: [(plot) => plot.select.width > 4 && zoom(plot.posToVal(plot.select.left, "x") * 1e3, plot.posToVal(plot.select.left + plot.select.width, "x") * 1e3)],
    },
    plugins: [tooltip(series, panel.options?.tooltip ?? {}, marks)],
  };
}

const scaleOf = (field) => `${field.config.unit ?? "short"}${field.config.custom?.axisPlacement === "right" ? " right" : ""}`;

function rangeOf(field, least, most, series, unit) {
  if (!field) return [0, 1];
  const { min, max, custom = {} } = field.config;
  const isBars = series.some(({ field: one }) => scaleOf(one) === unit && one.config.custom?.drawStyle === "bars");
  if (least === null || most === null) [least, most] = [min ?? 0, max ?? 1];
  let low = min ?? Math.min(least, custom.axisSoftMin ?? least, isBars ? 0 : least);
  let high = max ?? Math.max(most, custom.axisSoftMax ?? most);
  if (low >= high) [low, high] = [min ?? low - (Math.abs(low) * 0.1 || 1), max ?? (low === high ? high : low) + (Math.abs(low) * 0.1 || 1)];
  const room = (high - low) * 0.06;
  return [min ?? (low === 0 ? 0 : low - room), max ?? high + room];
}

/** As many digits as it takes that no two labels are the same. */
function labelsOf(ticks, field) {
  const { unit, decimals } = field?.config ?? {};
  for (let digits = 3; digits < 7; digits += 1) {
    const labels = ticks.map((tick) => format(tick, unit, decimals, digits));
    if (new Set(labels).size === ticks.length) return labels;
  }
  return ticks.map((tick) => format(tick, unit, decimals, 7));
}

function timeLabels(ticks, span_ms) {
  const withSeconds = ticks.length > 1 && ticks[1] - ticks[0] < 60;
  return ticks.map((tick) => {
    const text = dateText(tick * 1e3);
    return span_ms > 2 * 864e5 ? text.slice(5, 10) : text.slice(11, withSeconds ? 19 : 16);
  });
}

function lineOf(field) {
  const { drawStyle = "line", lineWidth = 1, fillOpacity = 0, lineStyle, lineInterpolation, showPoints = "auto", pointSize = 5, spanNulls } = field.config.custom ?? {};
  const paths = globalThis.uPlot.paths;
  return {
    label: field.label,
    scale: scaleOf(field),
    stroke: field.color,
    width: drawStyle === "points" ? 0 : lineWidth,
    dash: { dash: lineStyle?.dash ?? [10, 10], dot: [2, 6] }[lineStyle?.fill],
    fill: fillOpacity ? withAlpha(field.color, drawStyle === "bars" && stacked(field) ? 1 : fillOpacity / 100) : undefined,
    spanGaps: spanNulls === true,
    points: { show: drawStyle === "points" || showPoints === "always" ? true : showPoints === "never" || drawStyle === "bars" ? false : undefined, size: pointSize },
    paths: drawStyle === "bars"
      ? paths.bars({ size: [0.9, 100] })
      : { stepBefore: paths.stepped({ align: -1 }), stepAfter: paths.stepped({ align: 1 }), smooth: paths.spline() }[lineInterpolation],
  };
}

/** Of a stack, each series is filled down to the one below it. */
function bandsOf(series) {
  const bands = [];
  const last = {};
  for (const [index, { field }] of [...series.entries()].reverse()) {
    if (!stacked(field) || field.config.custom.drawStyle === "bars") continue;
    const group = field.config.custom.stacking.group ?? "A";
    if (last[group]) bands.push({ series: [index + 1, last[group]], fill: withAlpha(field.color, (field.config.custom.fillOpacity ?? 0) / 100) });
    last[group] = index + 1;
  }
  return bands;
}

function drawThresholds(plot, field, scale, part) {
  const style = field?.config.custom?.thresholdsStyle?.mode ?? "off";
  const list = style === "off" ? [] : steps(field);
  const { ctx, bbox } = plot;
  const place = (value) => Math.min(Math.max(plot.valToPos(value, scale, true), bbox.top), bbox.top + bbox.height);
  ctx.save();
  list.forEach(({ from, color }, index) => {
    if (color === "transparent") return;
    const top = place(list[index + 1]?.from ?? plot.scales[scale].max);
    const bottom = from === -Infinity ? bbox.top + bbox.height : place(from);
    if (part === "area" && style.includes("area")) {
      ctx.fillStyle = withAlpha(color, 0.12);
      ctx.fillRect(bbox.left, top, bbox.width, bottom - top);
    }
    if (part === "line" && (style.includes("line") || style.includes("dashed")) && from > plot.scales[scale].min && from <= plot.scales[scale].max) {
      ctx.strokeStyle = withAlpha(color, 0.8);
      ctx.setLineDash(style.includes("dashed") ? [8, 6] : []);
      line(ctx, bbox.left, bottom, bbox.left + bbox.width, bottom);
    }
  });
  ctx.restore();
}

function drawMarks(plot, marks) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.setLineDash([3, 3]);
  for (const { time, color } of marks) {
    const x = Math.round(plot.valToPos(time / 1e3, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = withAlpha(color, 0.7);
    line(ctx, x, bbox.top, x, bbox.top + bbox.height);
    ctx.fillStyle = color;
    ctx.beginPath();
    ctx.moveTo(x - 5, bbox.top + bbox.height + 6);
    ctx.lineTo(x + 5, bbox.top + bbox.height + 6);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.fill();
  }
  ctx.restore();
}

function line(ctx, x1, y1, x2, y2) {
  ctx.beginPath();
  ctx.moveTo(x1, y1);
  ctx.lineTo(x2, y2);
  ctx.stroke();
}

const MARK_REACH_PX = 6;

/** Values below the cursor, and the texts of the marks near it. */
function tooltip(series, { mode = "single", sort = "none" }, marks) {
  if (mode === "none") return { hooks: {} };
  const box = element("div.tooltip", { hidden: true });
  let near = null;
  return {
    hooks: {
      init: [(plot) => plot.over.append(box)],
      setSeries: [(_, index) => (near = index)],
      setCursor: [(plot) => {
        const { idx, left, top } = plot.cursor;
        box.hidden = !(left >= 0) || idx === null || idx === undefined || !plot.over.matches(":hover");
        if (box.hidden) return;
        let rows = series.map(({ field }, index) => ({ field, index, value: rawValue(plot, series, index, idx) })).filter(({ value }) => value !== null && value !== undefined);
        if (mode === "single") rows = rows.filter(({ index }) => index + 1 === (near ?? nearest(plot, idx)));
        if (sort !== "none") rows.sort((a, b) => (sort === "asc" ? a.value - b.value : b.value - a.value));
        const touched = marks.filter(({ time }) => Math.abs(plot.valToPos(time / 1e3, "x") - left) < MARK_REACH_PX);
        box.replaceChildren(
          element("div.when", {}, dateText(plot.data[0][idx] * 1e3)),
          ...rows.slice(0, 24).map(({ field, value }) => element("div.row", {}, swatch(field), element("span", {}, field.label), element("b", {}, display(value, field).text))),
          ...touched.slice(0, 4).map(({ text, color }) => element("div.mark", { style: { "--color": color } }, text)),
          rows.length > 24 ? element("div.when", {}, `and ${rows.length - 24} more`) : "",
        );
        const flip = left > plot.over.clientWidth / 2;
        Object.assign(box.style, { left: flip ? "auto" : `${left + 14}px`, right: flip ? `${plot.over.clientWidth - left + 14}px` : "auto", top: `${Math.min(top, plot.over.clientHeight - 20)}px` });
      }],
    },
  };
}

/** The value itself, also where the series is stacked on another. */
function rawValue(plot, series, index, row) {
  const value = plot.data[index + 1][row];
  if (!stacked(series[index].field)) return value;
  const time = plot.data[0][row] * 1e3;
  const { field, frame } = series[index];
  return field.values[frame.fields.find(({ type }) => type === "time").values.indexOf(time)] ?? null;
}

function nearest(plot, row) {
  const distance = (index) => Math.abs(plot.valToPos(plot.data[index][row] ?? NaN, plot.series[index].scale) - plot.cursor.top);
  return plot.series.map((_, index) => index).slice(1).reduce((best, index) => (distance(index) < distance(best) || Number.isNaN(distance(best)) ? index : best), 1);
}

function swatch(field) {
  const dashed = ["dash", "dot"].includes(field.config.custom?.lineStyle?.fill);
  return element(dashed ? "i.swatch.dashed" : "i.swatch", { style: { "--color": field.color } });
}

/** A click shows one series alone, with Ctrl or Cmd it switches one on or off. */
function legendOf(series, { displayMode = "list", calcs = [], sortBy, sortDesc }, hidden, changed) {
  const sorting = calcs.find((calc) => calcTitle(calc) === sortBy || calc === sortBy);
  const order = sorting ? series.toSorted((a, b) => (calculate(sorting, b.field.values) - calculate(sorting, a.field.values)) * (sortDesc ? 1 : -1)) : series;
  const rows = order.map(({ field }) => {
    const name = element("button.name", { title: field.label, onclick: (event) => toggle(field.label, event.ctrlKey || event.metaKey) }, swatch(field), field.label);
    const values = calcs.map((calc) => element("td", {}, display(calculate(calc, field.values), field).text));
    return { label: field.label, row: element("tr", {}, element("td", {}, name), values) };
  });
  const mark = () => rows.forEach(({ label, row }) => row.classList.toggle("off", hidden.has(label)));
  function toggle(label, one) {
    if (one) hidden.has(label) ? hidden.delete(label) : hidden.add(label);
    else {
      const alone = rows.every((other) => hidden.has(other.label) === (other.label !== label));
      rows.forEach((other) => (alone || other.label === label ? hidden.delete(other.label) : hidden.add(other.label)));
    }
    mark();
    changed();
  }
  mark();
  const head = displayMode === "table" ? element("thead", {}, element("tr", {}, element("th"), calcs.map((calc) => element("th", {}, calcTitle(calc))))) : null;
  return element(displayMode === "table" ? "div.legend.table" : "div.legend", {}, element("table", {}, head, element("tbody", {}, rows.map(({ row }) => row))));
}

