// Queries to Prometheus (Mimir) and Loki through Grafana's proxy; every answer becomes frames:
// {refId, name, step, fields: [{name, type: time|number|string, values, labels, shown}]}. Times are milliseconds, `step` seconds.

import { duration, seconds, stepOf } from "./time.js";

const SCRAPE_INTERVAL_S = 15; // Grafana's own default, where a data source names none
const LOG_LINES = 1000;

let listed;

/** Every data source of this server. */
export function dataSources() {
  listed ??= json("/api/datasources");
  return listed;
}

async function json(path, options) {
  const answer = await patient(path, { credentials: "same-origin", ...options });
  const text = await answer.text();
  let body;
  try {
    body = JSON.parse(text);
  } catch {
    body = { message: text.trim() };
  }
  if (!answer.ok || body.status === "error") throw new Error(body.error ?? body.message ?? `${answer.status} ${answer.statusText}`);
  return body;
}

/** Chromium cuts off every request when a network of the machine comes or goes, as with each container or VPN. */
async function patient(path, options, tries = 3) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (tries === 1) throw new Error(`${error.message}: ${path}`);
    await new Promise((done) => setTimeout(done, 300));
    return patient(path, options, tries - 1);
  }
}

export const model = (uid) => json(`/api/dashboards/uid/${encodeURIComponent(uid)}`).then((answer) => answer.dashboard);
export const dashboardsTagged = (tags) => json(`/api/search?type=dash-db${tags.map((tag) => `&tag=${encodeURIComponent(tag)}`).join("")}`);

/** `reference`: {uid, type}, a uid, a name, or nothing for the default one. */
export async function sourceOf(reference, context) {
  const wanted = context.text(typeof reference === "string" ? reference : (reference?.uid ?? ""));
  const all = await dataSources();
  const found = wanted
    ? all.find((source) => source.uid === wanted || source.name === wanted)
    : (all.find((source) => source.isDefault) ?? all[0]);
  if (!found) throw new Error(`no data source "${wanted}"; there are ${all.map((source) => source.uid).join(", ") || "none"}`);
  if (!["prometheus", "loki"].includes(found.type)) throw new Error(`the preview asks no ${found.type}; it knows prometheus and loki`);
  return found;
}

function ask(source, path, parameters) {
  const url = `/api/datasources/proxy/uid/${encodeURIComponent(source.uid)}/${path}`;
  if (source.type === "prometheus" && path.includes("/query")) {
    const headers = { "Content-Type": "application/x-www-form-urlencoded" };
    return json(url, { method: "POST", headers, body: new URLSearchParams(parameters) });
  }
  return json(`${url}?${new URLSearchParams(parameters)}`);
}

/** Frames of one target of a panel. `points`: how many fit the panel's width. */
export async function query(target, panel, context, points) {
  const source = await sourceOf(target.datasource ?? panel.datasource, context);
  const scrape = seconds(source.jsonData?.timeInterval) || SCRAPE_INTERVAL_S;
  const least = seconds(context.text(target.interval || panel.interval || "")) || (source.type === "prometheus" ? scrape : 1);
  const step = stepOf(context.range, panel.maxDataPoints ?? points, least) * (target.intervalFactor || 1);
  const scoped = context.with({
    __interval: duration(step),
    __interval_ms: String(step * 1e3),
    __rate_interval: duration(Math.max(step + scrape, 4 * scrape)),
    __auto: duration(step),
  });
  const expression = scoped.text(target.expr ?? "", source.type);
  if (!expression) return [];
  return source.type === "loki" ? loki(source, target, expression, step, context) : prometheus(source, target, expression, step, context);
}

async function prometheus(source, target, expression, step, context) {
  const { from, to } = context.range;
  if (target.instant && !target.range) {
    const answer = await ask(source, "api/v1/query", { query: expression, time: to / 1e3 });
    return framesOf(answer.data, target, step, context);
  }
  const start = Math.floor(from / 1e3 / step) * step;
  const answer = await ask(source, "api/v1/query_range", { query: expression, start, end: Math.floor(to / 1e3), step });
  return framesOf(answer.data, target, step, context);
}

async function loki(source, target, expression, step, context) {
  const { from, to } = context.range;
  if (target.queryType === "instant") {
    const answer = await ask(source, "loki/api/v1/query", { query: expression, time: `${Math.floor(to)}000000` });
    return framesOf(answer.data, { ...target, format: "table", valueName: `Value #${target.refId}` }, step, context); // as Grafana has Loki's
  }
  const limit = target.maxLines ?? LOG_LINES;
  const range = { start: `${Math.floor(from)}000000`, end: `${Math.floor(to)}000000` };
  const answer = await ask(source, "loki/api/v1/query_range", { query: expression, ...range, step: duration(step), limit });
  return answer.data.resultType === "streams" ? [lines(answer.data.result, target)] : framesOf(answer.data, target, step, context);
}

function lines(streams, target) {
  const all = streams.flatMap(({ stream, values }) => values.map(([time, line]) => ({ time: Number(time) / 1e6, line, stream })));
  all.sort((a, b) => b.time - a.time);
  return {
    refId: target.refId,
    name: "",
    isLog: true,
    fields: [
      { name: "Time", type: "time", values: all.map(({ time }) => time), labels: {} },
      { name: "Line", type: "string", values: all.map(({ line }) => line), labels: {} },
      { name: "labels", type: "other", values: all.map(({ stream }) => stream), labels: {} },
    ],
  };
}

function framesOf(data, target, step, context) {
  if (data.resultType === "scalar") data = { resultType: "vector", result: [{ metric: {}, value: data.result }] };
  const series = data.result.map(({ metric, value, values }) => ({ metric, points: values ?? [value] }));
  if (!series.length) return [];
  if (target.format === "table") return [asTable(series, target)];
  return series.map(({ metric, points }) => {
    const name = legend(target.legendFormat, metric, context);
    const times = points.map(([time]) => time * 1e3);
    const values = points.map(([, value]) => number(value));
    const shown = target.format === "heatmap" ? (metric.le ?? name) : name;
    return {
      refId: target.refId,
      name: shown,
      step,
      fields: [
        { name: "Time", type: "time", values: times, labels: {} },
        { name: "Value", type: "number", values, labels: metric, shown },
      ],
    };
  });
}

function asTable(series, target) {
  const labels = [...new Set(series.flatMap(({ metric }) => Object.keys(metric)))].sort();
  const rows = series.flatMap(({ metric, points }) => points.map(([time, value]) => ({ metric, time: time * 1e3, value: number(value) })));
  return {
    refId: target.refId,
    name: "", // else the only value column of a table would be called by it
    fields: [
      { name: "Time", type: "time", values: rows.map(({ time }) => time), labels: {} },
      ...labels.map((label) => ({ name: label, type: "string", values: rows.map(({ metric }) => metric[label] ?? null), labels: {} })),
      { name: target.valueName ?? "Value", type: "number", values: rows.map(({ value }) => value), labels: {} },
    ],
  };
}

const number = (text) => ({ NaN: null, "+Inf": Infinity, "-Inf": -Infinity })[text] ?? (text === "NaN" ? null : Number(text));

function legend(format, metric, context) {
  if (format && format !== "__auto") {
    return context.text(format).replace(/\{\{\s*([^}]+?)\s*\}\}/g, (_, label) => metric[label] ?? "");
  }
  const { __name__: name = "", ...labels } = metric;
  const text = Object.entries(labels).map(([label, value]) => `${label}="${value}"`).join(", ");
  return text ? `${name}{${text}}` : name || "Value";
}

/** Values of a variable's query: label_values(), query_result(), metrics(). */
export async function variableValues(variable, context) {
  const source = await sourceOf(variable.datasource, context);
  const asked = variable.query;
  const { from, to } = context.range;
  const isLoki = source.type === "loki";
  const range = isLoki ? { start: `${Math.floor(from)}000000`, end: `${Math.floor(to)}000000` } : { start: from / 1e3, end: to / 1e3 };
  const api = isLoki ? "loki/api/v1" : "api/v1";
  const labelValues = async (label, selector) => {
    const match = selector ? { [isLoki ? "query" : "match[]"]: selector } : {};
    return (await ask(source, `${api}/label/${label}/values`, { ...range, ...match })).data ?? [];
  };
  if (typeof asked === "object" && asked.label && !asked.query) return labelValues(asked.label, context.text(asked.stream ?? "", source.type));
  const text = context.text(typeof asked === "string" ? asked : (asked?.query ?? ""), source.type).trim();
  const found = /^(label_values|query_result|metrics|label_names)\((.*)\)$/s.exec(text);
  if (!found) throw new Error(`the preview cannot ask "${text}"; it knows label_values(), query_result(), metrics()`);
  const [, verb, inner] = found;
  if (verb === "label_values") {
    const comma = inner.lastIndexOf(",");
    return comma < 0 ? labelValues(inner.trim()) : labelValues(inner.slice(comma + 1).trim(), inner.slice(0, comma).trim());
  }
  if (verb === "label_names") return (await ask(source, `${api}/labels`, range)).data;
  if (verb === "metrics") return (await labelValues("__name__")).filter((name) => new RegExp(inner.trim()).test(name));
  const answer = await ask(source, "api/v1/query", { query: inner, time: to / 1e3 });
  return answer.data.result.map(({ metric: { __name__ = "", ...labels }, value }) => {
    const pairs = Object.entries(labels).map(([label, one]) => `${label}="${one}"`);
    return `${__name__}{${pairs.join(",")}} ${value[1]} ${value[0] * 1e3}`;
  });
}

/** Marks of an annotation query: [{time, text}]. */
export async function marks(annotation, context) {
  const target = annotation.target ?? {};
  const frames = await query({ refId: "Anno", maxLines: 200, ...target, expr: target.expr ?? annotation.expr }, annotation, context, 200);
  return frames.flatMap(({ isLog, name, fields: [times, values] }) =>
    times.values
      .map((time, row) => ({ time, value: values.values[row] }))
      .filter(({ value }) => isLog || value)
      .map(({ time, value }) => ({ time, text: isLog ? value : name })),
  );
}
