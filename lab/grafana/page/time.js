// Grafana's time ranges: `now-6h`, `now/d`, or milliseconds since 1970.

const MS = { s: 1e3, m: 6e4, h: 36e5, d: 864e5, w: 7 * 864e5, M: 30 * 864e5, y: 365 * 864e5 };

export const QUICK_RANGES = [
  ["now-5m", "Last 5 minutes"],
  ["now-15m", "Last 15 minutes"],
  ["now-30m", "Last 30 minutes"],
  ["now-1h", "Last hour"],
  ["now-3h", "Last 3 hours"],
  ["now-6h", "Last 6 hours"],
  ["now-12h", "Last 12 hours"],
  ["now-24h", "Last 24 hours"],
  ["now-2d", "Last 2 days"],
  ["now-7d", "Last 7 days"],
  ["now-30d", "Last 30 days"],
];

/** Milliseconds. `up`: a rounding such as `/d` goes to the end of the day, as the end of a range does. Throws on other text. */
export function parseTime(text, now, up) {
  if (/^\d+$/.test(text)) return Number(text);
  const found = /^now((?:[+-]\d+[smhdwMy])*)(?:\/([smhdwMy]))?$/.exec(text);
  if (!found) {
    const date = Date.parse(text);
    if (Number.isNaN(date)) throw new Error(`"${text}" is no time; such as now-6h, or 2026-11-21 10:00`);
    return date;
  }
  let time = now;
  for (const [, sign, count, unit] of found[1].matchAll(/([+-])(\d+)([smhdwMy])/g)) {
    time += (sign === "-" ? -1 : 1) * Number(count) * MS[unit];
  }
  return found[2] ? rounded(time, found[2], up) : time;
}

function rounded(time, unit, up) {
  const date = new Date(time);
  const fields = [date.getFullYear(), date.getMonth(), date.getDate(), date.getHours(), date.getMinutes(), date.getSeconds()];
  const kept = { y: 1, M: 2, w: 3, d: 3, h: 4, m: 5, s: 6 }[unit];
  const start = fields.map((value, index) => (index < kept ? value : index === 2 ? 1 : 0));
  if (unit === "w") start[2] -= (date.getDay() + 6) % 7;
  if (!up) return new Date(...start).getTime();
  start[kept - 1] += unit === "w" ? 7 : 1;
  return new Date(...start).getTime() - 1;
}

/** Seconds of `15s`, `1m`, `1h30m`; 0 for nothing. */
export function seconds(text) {
  return [...String(text ?? "").matchAll(/([\d.]+)(ms|[smhdwMy])/g)].reduce(
    (sum, [, count, unit]) => sum + Number(count) * (unit === "ms" ? 1e-3 : MS[unit] / 1e3),
    0,
  );
}

/** 90 -> `1m30s`, as PromQL takes it. */
export function duration(allSeconds) {
  if (allSeconds < 1) return `${Math.max(1, Math.round(allSeconds * 1e3))}ms`;
  let left = Math.round(allSeconds);
  let text = "";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]]) {
    if (left >= size) text += Math.floor(left / size) + unit;
    left %= size;
  }
  return text;
}

const NICE_STEPS_S = [1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400];

/** Seconds between two points, so that at most `points` of them fill the range and none is finer than `least`. */
export function stepOf(range, points, least) {
  const wanted = Math.max((range.to - range.from) / 1e3 / points, least);
  return NICE_STEPS_S.find((step) => step >= wanted && step >= least) ?? Math.ceil(wanted / 86400) * 86400;
}

const pad = (number) => String(number).padStart(2, "0");

export function dateText(ms) {
  const date = new Date(ms);
  return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${clockText(ms)}`;
}

export function clockText(ms) {
  const date = new Date(ms);
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

export function rangeText(from, to) {
  return (to === "now" && QUICK_RANGES.find(([start]) => start === from)?.[1]) || `${pointText(from)} to ${pointText(to)}`;
}

const pointText = (text) => (/^\d+$/.test(text) ? dateText(Number(text)) : text);
