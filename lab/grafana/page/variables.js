// A dashboard's variables: their choices, and their place in a query.

import { dataSources, variableValues } from "./sources.js";

const ALL = "$__all";
const PATTERN = /\$\{(\w+)(?:\.([^:}]+))?(?::([^}]+))?\}|\$(\w+)|\[\[(\w+)(?::(\w+))?\]\]/g;

const regexEscape = (text) => text.replace(/[\\^$*+?.()|[\]{}/]/g, "\\$&");
const quotedRegexEscape = (text) => text.replace(/[\\^$*+?.()|[\]{}]/g, "\\\\$&"); // inside a PromQL string

const FORMATS = {
  csv: (values) => values.join(","),
  raw: (values) => values.join(","),
  pipe: (values) => values.join("|"),
  regex: (values) => (values.length === 1 ? regexEscape(values[0]) : `(${values.map(regexEscape).join("|")})`),
  json: (values) => JSON.stringify(values),
  text: (values) => values.join(" + "),
  percentencode: (values) => encodeURIComponent(values.join(",")),
  doublequote: (values) => values.map((value) => JSON.stringify(value)).join(","),
  singlequote: (values) => values.map((value) => `'${value}'`).join(","),
  glob: (values) => (values.length === 1 ? values[0] : `{${values.join(",")}}`),
};

/** One variable with its choices; `chosen` is a list of values, or [ALL]. */
export class Variable {
  constructor(model, fromUrl) {
    this.model = model;
    this.name = model.name;
    this.multi = Boolean(model.multi);
    this.options = [];
    this.error = "";
    const current = model.current?.value;
    this.chosen = fromUrl.length ? fromUrl : current === undefined || current === "" ? [] : [current].flat();
  }

  get hasAll() {
    return Boolean(this.model.includeAll);
  }

  get isAll() {
    return this.chosen.includes(ALL);
  }

  get values() {
    return this.isAll ? this.options.map(({ value }) => value) : this.chosen;
  }

  get shown() {
    if (this.isAll) return "All";
    return this.chosen.map((value) => this.options.find((option) => option.value === value)?.text ?? value).join(" + ") || "None";
  }

  /** Choices from the data source, and of what was chosen only what still is one. */
  async load(context) {
    this.error = "";
    try {
      this.options = await this.found(context);
    } catch (error) {
      this.error = error.message;
      this.options = [];
    }
    if (this.model.type === "textbox" || this.model.type === "constant" || this.error || this.isAll) return;
    const known = new Set(this.options.map(({ value }) => value));
    const kept = this.chosen.filter((value) => known.has(value) || (this.model.allowCustomValue !== false && value));
    this.chosen = kept.length ? kept : this.hasAll ? [ALL] : this.options.slice(0, 1).map(({ value }) => value);
  }

  async found(context) {
    const { type, query, regex, sort, options } = this.model;
    const text = typeof query === "string" ? query : (query?.query ?? "");
    switch (type) {
      case "query":
        return sorted(filtered(await variableValues(this.model, context), context.text(regex ?? "")), sort);
      case "custom":
        return text ? text.split(/(?<!\\),/).map(pair) : (options ?? []).filter(({ value }) => value !== ALL);
      case "interval":
        return text.split(",").map(pair);
      case "datasource":
        return (await dataSources()).filter((source) => source.type === text).map(({ uid, name }) => ({ value: uid, text: name }));
      case "constant":
      case "textbox":
        if (!this.chosen.length) this.chosen = [text];
        return this.chosen.map((value) => ({ value, text: value }));
      default:
        throw new Error(`the preview has no variables of type ${type}`);
    }
  }

  /** Its place in a query of `language` (prometheus, loki, or empty for any other text). */
  written(format, language) {
    if (format === "queryparam") return this.chosen.map((value) => `var-${this.name}=${encodeURIComponent(value)}`).join("&");
    if (format === "text") return this.shown;
    if (this.isAll && this.model.allValue) return this.model.allValue;
    const values = this.values;
    if (format) return (FORMATS[format] ?? FORMATS.glob)(values);
    if (!language || !(this.multi || this.hasAll)) return FORMATS.glob(values);
    const escaped = values.map(quotedRegexEscape);
    return escaped.length === 1 ? escaped[0] : `(${escaped.join("|")})`;
  }
}

function pair(text) {
  const [name, value] = text.split(/ : /);
  return { text: name.trim(), value: (value ?? name).trim().replace(/\\,/g, ",") };
}

function filtered(values, regex) {
  const found = /^\/(.*)\/(\w*)$/s.exec(regex);
  const expression = regex ? new RegExp(found ? found[1] : `^(?:${regex})$`, found?.[2]) : null;
  const options = values.flatMap((value) => {
    const match = expression ? expression.exec(value) : [value];
    if (!match) return [];
    const inside = match.groups?.value ?? match[1] ?? value;
    return [{ value: inside, text: match.groups?.text ?? inside }];
  });
  return [...new Map(options.map((option) => [option.value, option])).values()];
}

/** `order`: Grafana's numbers; 1 and 2 alphabetical, 3 and 4 numerical, 5 and 6 without case, 7 and 8 natural. */
function sorted(options, order = 0) {
  if (!order) return options;
  const natural = new Intl.Collator("en", { numeric: order === 3 || order === 4 || order >= 7, sensitivity: order >= 5 ? "base" : "variant" });
  const result = [...options].sort((a, b) => natural.compare(a.text, b.text));
  return order % 2 ? result : result.reverse();
}

/** What a text may refer to: the time range, the variables, and what is added for one query or one cell. */
export class Context {
  constructor(range, variables, extra = {}) {
    this.range = range; // from, to: milliseconds; raw: as it stands in the URL
    this.variables = variables;
    this.extra = extra;
  }

  with(extra) {
    return new Context(this.range, this.variables, { ...this.extra, ...extra });
  }

  text(template, language = "") {
    return String(template).replace(PATTERN, (whole, braced, path, bracedFormat, bare, bracketed, bracketedFormat) => {
      const name = braced ?? bare ?? bracketed;
      return this.valueOf(name, path, bracedFormat ?? bracketedFormat, language) ?? whole;
    });
  }

  valueOf(name, path, format, language) {
    const key = path ? `${name}.${path}` : name;
    if (key in this.extra) return String(this.extra[key]);
    const variable = this.variables.find((one) => one.name === name);
    if (variable) return variable.written(format, language);
    const { from, to, raw } = this.range;
    const range_s = Math.round((to - from) / 1e3);
    const built = {
      __from: Math.round(from),
      __to: Math.round(to),
      __range: `${range_s}s`,
      __range_s: range_s,
      __range_ms: range_s * 1e3,
      __url_time_range: `from=${encodeURIComponent(raw.from)}&to=${encodeURIComponent(raw.to)}`,
      __all_variables: this.variables.map((one) => one.written("queryparam")).filter(Boolean).join("&"),
    };
    return name in built ? String(built[name]) : undefined;
  }
}

export { ALL };
