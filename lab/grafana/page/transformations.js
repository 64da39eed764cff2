// Grafana's transformations of frames, those that the fleet's dashboards use and their nearest kin.

import { calcTitle, calculate } from "./calcs.js";
import { nameOf } from "./fields.js";

const KNOWN = {
  merge,
  organize: (frames, options) => frames.map((frame) => organized(frame, options)),
  sortBy: (frames, { sort = [] }) => frames.map((frame) => sort.reduceRight(sortedBy, frame)),
  limit: (frames, { limitField = 10 }) => frames.map((frame) => rowsOf(frame, (_, row) => row < limitField)),
  filterFieldsByName: (frames, options) => frames.map((frame) => ({ ...frame, fields: frame.fields.filter((field) => named(field, frame, options)) })),
  labelsToFields,
  joinByField,
  seriesToColumns: joinByField,
  groupBy: (frames, options) => frames.map((frame) => grouped(frame, options.fields ?? {})),
  reduce: reduceFrames,
  renameByRegex: (frames, { regex, renamePattern }) => renamed(frames, new RegExp(regex.replace(/^\/|\/$/g, "")), renamePattern),
  filterByValue,
  calculateField,
  convertFieldType: (frames) => frames,
};

export function transform(frames, transformations = []) {
  return transformations
    .filter(({ disabled }) => !disabled)
    .reduce((current, { id, options = {}, filter }) => {
      if (!(id in KNOWN)) throw new Error(`the preview has no transformation "${id}"; it has ${Object.keys(KNOWN).join(", ")}`);
      if (!filter) return KNOWN[id](current, options);
      const chosen = current.filter(({ refId }) => refId === filter.options);
      return [...KNOWN[id](chosen, options), ...current.filter(({ refId }) => refId !== filter.options)];
    }, frames);
}

const length = (frame) => frame.fields[0]?.values.length ?? 0;
const rowsOf = (frame, keeps) => ({ ...frame, fields: frame.fields.map((field) => ({ ...field, values: field.values.filter((value, row) => keeps(value, row)) })) });
const reordered = (frame, order) => ({ ...frame, fields: frame.fields.map((field) => ({ ...field, values: order.map((row) => field.values[row]) })) });

/** One table: rows that agree in every column they share become one. */
function merge(frames) {
  if (frames.length < 2) return frames;
  const names = [];
  const types = {};
  const rows = [];
  for (const frame of frames) {
    const here = frame.fields.map((field) => nameOf(field, frame));
    frame.fields.forEach((field, index) => {
      if (!names.includes(here[index])) names.push(here[index]);
      types[here[index]] ??= field.type;
    });
    const byKey = indexed(rows, here);
    for (let row = 0; row < length(frame); row += 1) {
      const values = Object.fromEntries(here.map((name, index) => [name, frame.fields[index].values[row]]));
      const same = byKey(values);
      if (same) Object.assign(same, values);
      else rows.push(values);
    }
  }
  return [{ refId: frames[0].refId, name: "", fields: names.map((name) => ({ name, type: types[name], labels: {}, values: rows.map((row) => row[name] ?? null) })) }];
}

/** Finds the row of an earlier frame with the same values in the columns both have. */
function indexed(rows, names) {
  const shared = rows.length ? names.filter((name) => name in rows[0]) : [];
  const key = (row) => JSON.stringify(shared.map((name) => row[name]));
  const known = new Map(shared.length ? rows.map((row) => [key(row), row]) : []);
  return (row) => known.get(key(row));
}

function organized(frame, { excludeByName = {}, includeByName = {}, indexByName = {}, renameByName = {} }) {
  const includes = Object.values(includeByName).some(Boolean);
  const kept = frame.fields.filter((field) => !excludeByName[nameOf(field, frame)] && (!includes || includeByName[nameOf(field, frame)]));
  const place = (field) => indexByName[nameOf(field, frame)] ?? Number.MAX_SAFE_INTEGER;
  kept.sort((a, b) => place(a) - place(b));
  return { ...frame, fields: kept.map((field) => rename(field, renameByName[nameOf(field, frame)])) };
}

const rename = (field, name) => (name ? { ...field, name, shown: name } : field);

function sortedBy(frame, { field: name, desc }) {
  const field = frame.fields.find((one) => nameOf(one, frame) === name);
  if (!field) return frame;
  const order = [...field.values.keys()].sort((a, b) => compare(field.values[a], field.values[b]) * (desc ? -1 : 1));
  return reordered(frame, order);
}

/** Numbers by size, texts with their numbers by size, nothing first. */
export function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

function named(field, frame, { include, exclude }) {
  const name = nameOf(field, frame);
  const hit = ({ names = [], pattern }) => names.includes(name) || (pattern ? new RegExp(pattern.replace(/^\/|\/$/g, "")).test(name) : false);
  return (!include || hit(include)) && !(exclude && hit(exclude));
}

function labelsToFields(frames, { mode = "columns", valueLabel, keepLabels }) {
  if (mode === "rows") throw new Error("the preview has labelsToFields in columns only");
  return merge(
    frames.map((frame) => {
      const times = frame.fields.filter(({ type }) => type === "time");
      const values = frame.fields.filter(({ type }) => type !== "time");
      const labels = Object.assign({}, ...values.map((field) => field.labels));
      const kept = Object.entries(labels).filter(([label]) => label !== valueLabel && label !== "__name__" && (!keepLabels || keepLabels.includes(label)));
      const columns = kept.map(([label, value]) => ({ name: label, type: "string", labels: {}, values: Array(length(frame)).fill(value) }));
      const numbers = values.map((field) => ({ ...field, labels: {}, shown: undefined, name: (valueLabel && field.labels[valueLabel]) || field.labels.__name__ || field.name }));
      return { ...frame, name: "", fields: [...times, ...columns, ...numbers] };
    }),
  );
}

function joinByField(frames, { byField, mode = "outer" }) {
  if (frames.length < 2) return frames;
  const keyOf = (frame) => frame.fields.find((field) => (byField ? nameOf(field, frame) === byField : field.type === "time"));
  const joined = frames.filter(keyOf);
  const sets = joined.map((frame) => keyOf(frame).values);
  let keys = [...new Set(sets.flat())];
  if (mode === "inner") keys = keys.filter((key) => sets.every((set) => set.includes(key)));
  keys.sort(compare);
  const columns = joined.flatMap((frame) => {
    const key = keyOf(frame);
    const rowOf = new Map(key.values.map((value, row) => [value, row]));
    return frame.fields.filter((field) => field !== key).map((field) => ({ ...field, shown: nameOf(field, frame), values: keys.map((one) => field.values[rowOf.get(one)] ?? null) }));
  });
  return [{ refId: "joined", name: "", fields: [{ ...keyOf(joined[0]), values: keys }, ...columns] }];
}

function grouped(frame, settings) {
  const settingOf = (field) => settings[nameOf(field, frame)] ?? {};
  const keys = frame.fields.filter((field) => settingOf(field).operation === "groupby");
  if (!keys.length) return frame;
  const groups = new Map();
  for (let row = 0; row < length(frame); row += 1) {
    const key = JSON.stringify(keys.map((field) => field.values[row]));
    groups.set(key, [...(groups.get(key) ?? []), row]);
  }
  const rows = [...groups.values()];
  const totals = frame.fields
    .filter((field) => settingOf(field).operation === "aggregate")
    .flatMap((field) =>
      settingOf(field).aggregations.map((calc) => ({
        ...field, type: "number", name: `${nameOf(field, frame)} (${calc})`, shown: undefined,
        values: rows.map((group) => calculate(calc, group.map((row) => field.values[row]))),
      })),
    );
  return { ...frame, name: "", fields: [...keys.map((field) => ({ ...field, values: rows.map(([first]) => field.values[first]) })), ...totals] };
}

function reduceFrames(frames, { reducers = ["max"], mode, labelsToFields: withLabels }) {
  if (mode === "reduceFields") {
    return frames.map((frame) => ({ ...frame, fields: frame.fields.filter(({ type }) => type !== "time").map((field) => ({ ...field, values: [calculate(reducers[0], field.values)] })) }));
  }
  const rows = frames.flatMap((frame) => frame.fields.filter(({ type }) => type === "number").map((field) => ({ name: nameOf(field, frame), field })));
  const labels = withLabels ? [...new Set(rows.flatMap(({ field }) => Object.keys(field.labels)))] : [];
  return [{
    refId: "reduced",
    name: "",
    fields: [
      ...(labels.length ? [] : [{ name: "Field", type: "string", labels: {}, values: rows.map(({ name }) => name) }]),
      ...labels.map((label) => ({ name: label, type: "string", labels: {}, values: rows.map(({ field }) => field.labels[label] ?? null) })),
      ...reducers.map((calc) => ({ name: calcTitle(calc), type: "number", labels: {}, values: rows.map(({ field }) => calculate(calc, field.values)) })),
    ],
  }];
}

const renamed = (frames, regex, pattern) =>
  frames.map((frame) => ({ ...frame, fields: frame.fields.map((field) => (field.type === "time" ? field : rename(field, nameOf(field, frame).replace(regex, pattern)))) }));

const TESTS = {
  isNull: (value) => value === null,
  isNotNull: (value) => value !== null,
  equal: (value, { value: other }) => String(value) === String(other),
  notEqual: (value, { value: other }) => String(value) !== String(other),
  greater: (value, { value: other }) => value > Number(other),
  greaterOrEqual: (value, { value: other }) => value >= Number(other),
  lower: (value, { value: other }) => value < Number(other),
  lowerOrEqual: (value, { value: other }) => value <= Number(other),
  regex: (value, { value: other }) => new RegExp(other).test(value),
};

function filterByValue(frames, { filters = [], type = "include", match = "all" }) {
  return frames.map((frame) => {
    const tests = filters.map(({ fieldName, config: { id, options } }) => {
      if (!(id in TESTS)) throw new Error(`the preview has no filter "${id}"; it has ${Object.keys(TESTS).join(", ")}`);
      const field = frame.fields.find((one) => nameOf(one, frame) === fieldName);
      return (row) => Boolean(field) && TESTS[id](field.values[row], options ?? {});
    });
    const hit = (row) => (match === "all" ? tests.every((test) => test(row)) : tests.some((test) => test(row)));
    return rowsOf(frame, (_, row) => hit(row) === (type === "include"));
  });
}

const OPERATORS = { "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => (b ? a / b : null) };

function calculateField(frames, { mode, alias, binary, replaceFields }) {
  if (mode !== "binary") throw new Error("the preview has calculateField with mode binary only");
  return frames.map((frame) => {
    const side = (given) => {
      const name = given?.matcher?.options ?? given?.fixed ?? given;
      const field = frame.fields.find((one) => nameOf(one, frame) === name);
      return (row) => (field ? field.values[row] : Number(name));
    };
    const [left, right] = [side(binary.left), side(binary.right)];
    const rows = [...Array(length(frame)).keys()];
    const values = rows.map((row) => (left(row) === null || right(row) === null ? null : OPERATORS[binary.operator](left(row), right(row))));
    const field = { name: alias || "Calculation", type: "number", labels: {}, values };
    return { ...frame, fields: replaceFields ? [...frame.fields.filter(({ type }) => type === "time"), field] : [...frame.fields, field] };
  });
}
