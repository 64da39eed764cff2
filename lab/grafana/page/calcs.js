// Grafana's calculations: one number of a series.

const known = (values) => values.filter((value) => value !== null && value !== undefined && !Number.isNaN(value));
const numbers = (values) => known(values).filter((value) => typeof value === "number");
const sum = (values) => values.reduce((total, value) => total + value, 0);
const least = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);
const orNothing = (calculation) => (values) => (numbers(values).length ? calculation(numbers(values)) : null);

const CALCS = {
  last: ["Last", (values) => values.at(-1) ?? null],
  lastNotNull: ["Last", (values) => known(values).at(-1) ?? null],
  first: ["First", (values) => values[0] ?? null],
  firstNotNull: ["First", (values) => known(values)[0] ?? null],
  min: ["Min", orNothing(least)],
  max: ["Max", orNothing(most)],
  mean: ["Mean", orNothing((values) => sum(values) / values.length)],
  sum: ["Total", orNothing(sum)],
  range: ["Range", orNothing((values) => most(values) - least(values))],
  diff: ["Difference", orNothing((values) => values.at(-1) - values[0])],
  count: ["Count", (values) => values.length],
};

export function calculate(name, values) {
  if (!(name in CALCS)) throw new Error(`the preview knows no calculation "${name}"; it knows ${Object.keys(CALCS).join(", ")}`);
  return CALCS[name][1](values);
}

export const calcTitle = (name) => CALCS[name]?.[0] ?? name;
