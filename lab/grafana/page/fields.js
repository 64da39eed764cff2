// What a panel says of a field: unit, thresholds, colour, mappings, with the overrides that match it.

import { calculate } from "./calcs.js";
import { classic, colorOf, isScale, onScale } from "./colors.js";
import { format } from "./units.js";

/** The name that people see, before overrides. */
export function nameOf(field, frame) {
  return field.shown ?? (field.name === "Value" && frame.name ? frame.name : field.name);
}

/** Gives every field of the frames its `config`, `label` and `color`. */
export function configure(frames, panel) {
  const { defaults = {}, overrides = [] } = panel.fieldConfig ?? {};
  let index = 0;
  for (const frame of frames) {
    for (const field of frame.fields) {
      const config = structuredClone(defaults);
      for (const { matcher, properties } of overrides) {
        if (matches(matcher, field, frame)) for (const { id, value } of properties) put(config, id, value);
      }
      field.config = config;
      field.label = config.displayName || nameOf(field, frame);
      if (field.type === "number") field.color = seriesColor(field, index++);
    }
  }
  return frames;
}

function matches({ id, options }, field, frame) {
  const name = nameOf(field, frame);
  switch (id) {
    case "byName":
      return name === options || field.name === options;
    case "byNames":
      return (options.names ?? []).includes(name) !== (options.mode === "exclude");
    case "byRegexp": {
      const found = /^\/(.*)\/(\w*)$/s.exec(options);
      return new RegExp(found ? found[1] : options, found?.[2]).test(name);
    }
    case "byType":
      return field.type === options;
    case "byFrameRefID":
      return frame.refId === options;
    default:
      throw new Error(`the preview knows no override "${id}"; it knows byName, byNames, byRegexp, byType, byFrameRefID`);
  }
}

function put(config, path, value) {
  const names = path.split(".");
  const last = names.pop();
  const place = names.reduce((inside, name) => (inside[name] ??= {}), config);
  place[last] = value;
}

function seriesColor(field, index) {
  const { mode = "palette-classic", fixedColor, seriesBy = "last" } = field.config.color ?? {};
  if (mode === "fixed" || mode === "shades") return colorOf(fixedColor ?? "green");
  if (mode === "thresholds" || isScale(mode)) return valueColor(calculate(seriesBy === "last" ? "lastNotNull" : seriesBy, field.values), field) ?? classic(index);
  return classic(index);
}

/** {text, color} of one value; `color` is undefined where nothing says one. */
export function display(value, field) {
  const mapped = mapping(value, field.config.mappings ?? []);
  if (value === null || value === undefined) return { text: mapped?.text ?? field.config.noValue ?? "-", color: mapped?.color };
  const text = mapped?.text ?? (field.type === "time" ? new Date(value).toLocaleString("sv") : format(value, field.config.unit, field.config.decimals));
  return { text, color: mapped?.color ?? (typeof value === "number" ? valueColor(value, field) : undefined) };
}

function mapping(value, mappings) {
  for (const { type, options } of mappings) {
    const result = {
      value: () => options[String(value)],
      range: () => (typeof value === "number" && value >= (options.from ?? -Infinity) && value <= (options.to ?? Infinity) ? options.result : null),
      regex: () => regexResult(options, value),
      special: () => (special(options.match, value) ? options.result : null),
    }[type]?.();
    if (result) return { text: result.text || undefined, color: result.color ? colorOf(result.color) : undefined };
  }
  return null;
}

function regexResult({ pattern, result }, value) {
  if (value === null || value === undefined) return null;
  const found = /^\/(.*)\/(\w*)$/s.exec(pattern);
  const expression = new RegExp(found ? found[1] : pattern, found?.[2]);
  return expression.test(value) ? { ...result, text: result.text && String(value).replace(expression, result.text) } : null;
}

const special = (match, value) =>
  ({ null: value === null || value === undefined, empty: value === "", true: value === true, false: value === false, "null+nan": value === null || value === undefined })[match];

/** The steps with plain numbers, lowest first; the first one reaches down to minus infinity. */
export function steps(field) {
  const { mode, steps: given = [] } = field.config.thresholds ?? {};
  const { min = 0, max = 100 } = field.config;
  return given.map(({ value, color }, index) => ({
    from: index === 0 || value === null ? -Infinity : mode === "percentage" ? min + ((max - min) * value) / 100 : value,
    color: colorOf(color),
  }));
}

/** By thresholds, as the single-value panels do; by the field's scale where it has one. */
export function valueColor(value, field) {
  if (value === null) return undefined;
  const { mode, fixedColor } = field.config.color ?? {};
  if (mode === "fixed" && fixedColor) return colorOf(fixedColor);
  if (isScale(mode)) {
    const { min = 0, max = 100 } = field.config;
    return onScale(mode, (value - min) / (max - min || 1));
  }
  return steps(field).findLast(({ from }) => value >= from)?.color;
}

/** One entry for each field that a single-value panel shows: {field, value, text, color, values}. */
export function reduced(frames, { calcs = ["lastNotNull"], fields = "", values: everyRow = false, limit = 25 } = {}) {
  const shown = frames.flatMap((frame) => frame.fields.filter((field) => fields ? field.label === fields || new RegExp(fields.replace(/^\/|\/$/g, "")).test(field.label) : field.type === "number").map((field) => ({ frame, field })));
  if (everyRow) {
    return shown.flatMap(({ frame, field }) => field.values.slice(0, limit).map((value, row) => ({ field, value, values: [], label: rowName(frame, row) || field.label, ...display(value, field) })));
  }
  return shown.map(({ field }) => {
    const value = calculate(calcs[0] ?? "lastNotNull", field.values);
    return { field, value, values: field.values, label: field.label, ...display(value, field) };
  });
}

const rowName = (frame, row) => frame.fields.filter(({ type }) => type === "string").map(({ values }) => values[row]).filter(Boolean).join(" ");
