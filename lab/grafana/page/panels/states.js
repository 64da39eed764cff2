// State timeline and status history: one row per series, one block per state.

import { readableOn } from "../colors.js";
import { element } from "../dom.js";
import { display } from "../fields.js";
import { clockText, dateText } from "../time.js";

const ENOUGH_ROWS = 100;

export function draw(body, { panel, frames, context }) {
  const all = frames.filter(({ isLog }) => !isLog).flatMap((frame) => frame.fields.filter(({ type }) => type === "number" || type === "string").map((field) => ({ field, frame })));
  if (!all.length) return false;
  const { showValue = "auto", mergeValues = panel.type === "state-timeline", legend = {} } = panel.options ?? {};
  const { from, to } = context.range;
  const place = (time) => ((Math.min(Math.max(time, from), to) - from) / (to - from)) * 100;
  const seen = new Map();
  const rows = all.slice(0, ENOUGH_ROWS).map(({ field, frame }) => {
    const times = frame.fields.find(({ type }) => type === "time").values;
    const blocks = blocksOf(field, times, frame.step, mergeValues).map(({ start, end, value }) => {
      const { text, color = field.color } = display(value, field);
      seen.set(text, color);
      const style = { left: `${place(start)}%`, width: `${place(end) - place(start)}%`, background: color, color: readableOn(color ?? "") };
      return element("span.block", { style, title: `${field.label}: ${text}\n${dateText(start)} to ${dateText(end)}` }, showValue === "never" ? "" : text);
    });
    return element("div.lane", {}, element("span.label", { title: field.label }, field.label), element("div.track", {}, blocks));
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => element("span", {}, clockText(from + share * (to - from)).slice(0, 5)));
  const words = legend.showLegend === false ? null : element("div.words", {}, [...seen].slice(0, 12).map(([text, color]) => element("span", {}, element("i.swatch", { style: { "--color": color } }), text)));
  const rest = all.length > ENOUGH_ROWS ? element("p.note", {}, `The preview draws ${ENOUGH_ROWS} of ${all.length} rows.`) : null;
  body.append(element("div.states", {}, element("div.lanes", {}, rows), rest, element("div.ticks", {}, ticks), words));
}

/** Equal neighbours are one block; a block ends where its series does. */
function blocksOf(field, times, step = 60, merges) {
  const blocks = [];
  field.values.forEach((value, row) => {
    if (value === null || value === undefined) return;
    const start = times[row];
    const end = Math.min(times[row + 1] ?? Infinity, start + 1.5 * step * 1e3);
    const last = blocks.at(-1);
    if (merges && last && last.value === value && start - last.end < 1) last.end = end;
    else blocks.push({ start, end, value });
  });
  return blocks;
}
