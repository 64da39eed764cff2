// Tables, sorted by a click on a heading.

import { readableOn, withAlpha } from "../colors.js";
import { element, safeUrl } from "../dom.js";
import { display } from "../fields.js";
import { compare } from "../transformations.js";

const ENOUGH_ROWS = 500;

/** `panel.sorted`: the column that a click chose, kept from one refresh to the next. */
export function draw(body, { panel, frames, context }) {
  const frame = frames[panel.options?.frameIndex ?? 0] ?? frames[0];
  const fields = (frame?.fields ?? []).filter(({ config, type }) => !config.custom?.hidden && !config.custom?.hideFrom?.viz && type !== "other");
  const count = fields[0]?.values.length ?? 0;
  if (!count) return false;
  const given = panel.options?.sortBy?.[0];
  panel.sorted ??= given ? { label: given.displayName, desc: given.desc } : null;
  const show = () => body.replaceChildren(tableOf());
  function tableOf() {
    const by = fields.find(({ label }) => label === panel.sorted?.label);
    const order = [...Array(count).keys()];
    if (by) order.sort((a, b) => compare(by.values[a], by.values[b]) * (panel.sorted.desc ? -1 : 1));
    const headings = fields.map((field) => {
      const arrow = field === by ? (panel.sorted.desc ? " ↓" : " ↑") : "";
      const sort = () => ((panel.sorted = { label: field.label, desc: field === by && !panel.sorted.desc }), show());
      const style = { width: field.config.custom?.width ? `${field.config.custom.width}px` : undefined, "text-align": alignment(field) };
      return element("th", { style }, element("button", { onclick: sort }, field.label + arrow));
    });
    const rows = order.slice(0, ENOUGH_ROWS).map((row) => element("tr", {}, fields.map((field) => cell(field, row, frame, context))));
    const rest = count > ENOUGH_ROWS ? element("p.note", {}, `The preview shows ${ENOUGH_ROWS} of ${count} rows.`) : null;
    return element("div.scroll", {}, element("table.grid", {}, element("thead", {}, element("tr", {}, headings)), element("tbody", {}, rows)), rest);
  }
  body.append(tableOf());
}

const alignment = ({ type, config }) => ({ auto: undefined })[config.custom?.align] ?? config.custom?.align ?? (type === "number" ? "right" : "left");

function cell(field, row, frame, context) {
  const value = field.values[row];
  const { text, color } = display(value, field);
  const kind = field.config.custom?.cellOptions?.type ?? "auto";
  const filled = kind === "color-background" && color;
  const wraps = field.config.custom?.cellOptions?.wrapText ? { "white-space": "normal", "vertical-align": "top" } : {};
  const style = { ...wraps, "text-align": alignment(field), background: filled ? color : undefined, color: filled ? readableOn(color) : kind === "color-text" ? color : undefined };
  const content = value === null || value === undefined ? (text === "-" ? "" : text) : kind === "gauge" && typeof value === "number" ? meter(value, field, text, color) : linked(text, field, row, frame, context);
  return element("td", { style, title: text }, content);
}

function meter(value, field, text, color = "#73bf69") {
  const { min = 0, max = Math.max(...field.values.filter(Number.isFinite), 1) } = field.config;
  const share = Math.min(Math.max((value - min) / (max - min || 1), 0), 1) * 100;
  return element("span.meter", { style: { "--share": `${share}%`, "--color": withAlpha(color, 0.6) } }, text);
}

function linked(text, field, row, frame, context) {
  const link = field.config.links?.[0];
  if (!link) return text;
  const cells = Object.fromEntries(frame.fields.flatMap((one) => [one.name, one.label].map((name) => [name, one.values[row] ?? ""])));
  const data = { "__value.raw": field.values[row] ?? "", "__value.text": text };
  for (const [name, value] of Object.entries(cells)) {
    data[`__data.fields.${name}`] = value;
    data[`__data.fields["${name}"]`] = value;
  }
  return element("a", { href: safeUrl(dataLink(link.url, data, context)), title: link.title, target: link.targetBlank ? "_blank" : undefined }, text);
}

/** Names of columns may hold spaces and brackets, which the variables' pattern does not take. */
function dataLink(url, data, context) {
  const filled = url.replace(/\$\{(__data\.fields(?:\.[^}:]+|\["[^"]+"\])|__value\.\w+)(?::\w+)?\}/g, (whole, name) => (name in data ? encodeURIComponent(data[name]) : whole));
  return context.text(filled);
}
