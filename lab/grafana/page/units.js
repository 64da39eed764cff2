// Numbers as people read them, under the names that Grafana gives its units.

const SI = ["", "k", "M", "G", "T", "P", "E"];
const IEC = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const SMALL = ["", "m", "µ", "n"];
const COUNT = ["", " K", " Mil", " Bil", " Tri"];

const scaled = (base, prefixes, unit, start = 0) => ({ base, prefixes: prefixes.slice(start), small: start === 0 && base === 1000, unit });
const plain = (unit) => ({ unit });

const UNITS = {
  none: plain(""),
  string: plain(""),
  locale: { grouped: true },
  short: { base: 1000, prefixes: COUNT, unit: "", glued: true },
  percent: { unit: "%", glued: true },
  percentunit: { factor: 100, unit: "%", glued: true },
  celsius: plain("°C"),
  fahrenheit: plain("°F"),
  bytes: scaled(1024, IEC, "B"),
  kbytes: scaled(1024, IEC, "B", 1),
  mbytes: scaled(1024, IEC, "B", 2),
  gbytes: scaled(1024, IEC, "B", 3),
  decbytes: scaled(1000, SI, "B"),
  decmbytes: scaled(1000, SI, "B", 2),
  bits: scaled(1024, IEC, "b"),
  decbits: scaled(1000, SI, "b"),
  Bps: scaled(1000, SI, "B/s"),
  binBps: scaled(1024, IEC, "B/s"),
  KBs: scaled(1000, SI, "B/s", 1),
  MBs: scaled(1000, SI, "B/s", 2),
  bps: scaled(1000, SI, "b/s"),
  binbps: scaled(1024, IEC, "b/s"),
  pps: scaled(1000, SI, "p/s"),
  watt: scaled(1000, SI, "W"),
  kwatt: scaled(1000, SI, "W", 1),
  watth: scaled(1000, SI, "Wh"),
  kwatth: scaled(1000, SI, "Wh", 1),
  joule: scaled(1000, SI, "J"),
  volt: scaled(1000, SI, "V"),
  amp: scaled(1000, SI, "A"),
  hertz: scaled(1000, SI, "Hz"),
  rotmhz: scaled(1000, SI, "Hz", 2),
  rotrpm: plain("rpm"),
  reqps: { base: 1000, prefixes: COUNT, unit: " req/s", glued: true },
  ops: { base: 1000, prefixes: COUNT, unit: " ops/s", glued: true },
  cps: { base: 1000, prefixes: COUNT, unit: " c/s", glued: true },
  iops: { base: 1000, prefixes: COUNT, unit: " io/s", glued: true },
  eps: { base: 1000, prefixes: COUNT, unit: " evt/s", glued: true },
  currencyUSD: { base: 1000, prefixes: ["", "K", "M", "B"], before: "$", unit: "", glued: true },
  currencyEUR: { base: 1000, prefixes: ["", "K", "M", "B"], before: "€", unit: "", glued: true },
};

const LENGTHS = [["year", 31536000], ["week", 604800], ["day", 86400], ["hour", 3600], ["min", 60], ["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
const IN_SECONDS = { ns: 1e-9, "µs": 1e-6, ms: 1e-3, s: 1, m: 60, h: 3600, d: 86400, dtdurations: 1, dtdurationms: 1e-3 };

/** `decimals`: null for about three significant digits. */
export function format(value, unit = "short", decimals = null, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "-∞";
  if (unit in IN_SECONDS) return lengthOf(value * IN_SECONDS[unit], unit.startsWith("dtduration"), decimals, digits);
  if (unit.startsWith("dateTime")) return new Date(value).toLocaleString();
  if (unit === "bool") return value ? "True" : "False";
  if (unit === "bool_yes_no") return value ? "Yes" : "No";
  if (unit === "bool_on_off") return value ? "On" : "Off";
  const known = UNITS[unit] ?? custom(unit);
  if (known.grouped) return value.toLocaleString("en", { maximumFractionDigits: decimals ?? 2 });
  let left = value * (known.factor ?? 1);
  let prefix = known.prefixes?.[0] ?? "";
  if (known.prefixes) {
    let power = 0;
    while (Math.abs(left) >= known.base && power < known.prefixes.length - 1) (left /= known.base), (power += 1);
    prefix = known.prefixes[power];
    if (known.small && left !== 0) {
      for (power = 0; Math.abs(left) < 1 && power < SMALL.length - 1; power += 1) left *= 1000;
      prefix = power ? SMALL[power] : prefix;
    }
  }
  const text = `${known.before ?? ""}${digitsOf(left, decimals, digits)}`;
  const tail = prefix + known.unit;
  return tail && !known.glued ? `${text} ${tail}` : text + tail;
}

function custom(unit) {
  const [kind, ...rest] = unit.split(":");
  const name = rest.join(":");
  if (kind === "suffix") return plain(name);
  if (kind === "prefix") return { before: name, unit: "", glued: true };
  if (kind === "si") return scaled(1000, SI, name);
  if (kind === "count") return { base: 1000, prefixes: COUNT, unit: ` ${name}`, glued: true };
  if (kind === "currency") return { base: 1000, prefixes: ["", "K", "M", "B"], before: name, unit: "", glued: true };
  return plain(unit);
}

function lengthOf(value, inWords, decimals, digits) {
  if (value === 0) return "0 s";
  let [name, size] = LENGTHS.find(([, length]) => Math.abs(value) >= length) ?? LENGTHS.at(-1);
  if (inWords && size >= 60) {
    const next = LENGTHS[LENGTHS.findIndex(([other]) => other === name) + 1];
    const whole = Math.trunc(value / size);
    const rest = Math.trunc(Math.abs(value % size) / next[1]);
    return counted(whole, name) + (rest ? `, ${counted(rest, next[0])}` : "");
  }
  return `${digitsOf(value / size, decimals, digits)} ${name}`;
}

const counted = (count, name) => `${count} ${name}${count === 1 || name.length <= 3 ? "" : "s"}`;

function digitsOf(value, decimals, digits) {
  if (decimals !== null && decimals !== undefined) return value.toFixed(decimals);
  const before = value === 0 ? 1 : Math.floor(Math.log10(Math.abs(value))) + 1;
  const shown = value.toFixed(Math.min(Math.max(digits - Math.max(before, value === 0 ? 1 : before), 0), 8));
  return shown.includes(".") ? shown.replace(/\.?0+$/, "") : shown;
}
