// Panels of single values: stat, gauge, bar gauge.

import { colorOf, readableOn, withAlpha } from "../colors.js";
import { element, svg } from "../dom.js";
import { reduced, steps } from "../fields.js";
import { format } from "../units.js";

export function stat(body, { panel, frames }) {
  const { reduceOptions, colorMode = "value", graphMode = "area", textMode = "auto", orientation = "auto" } = panel.options ?? {};
  const entries = reduced(frames, reduceOptions);
  if (!entries.length) return false;
  const named = textMode === "value_and_name" || textMode === "name" || (textMode === "auto" && entries.length > 1);
  const tiles = entries.map(({ field, text, color = "#ccccdc", label, values }) => {
    const filled = colorMode.startsWith("background") && color !== "transparent";
    const ink = filled ? readableOn(color) : colorMode === "value" ? color : undefined;
    const course = graphMode === "area" ? spark(values, field, filled ? ink : color) : null;
    return element(
      course ? "div.tile.with-course" : "div.tile",
      { style: { background: filled ? color : undefined, color: ink } },
      named && textMode !== "value" ? element("span.label", {}, label) : null,
      textMode === "none" ? null : element("strong", {}, textMode === "name" ? label : text),
      course,
    );
  });
  body.append(element(orientation === "vertical" ? "div.tiles.rows" : "div.tiles", {}, tiles));
}

function spark(values, field, color) {
  const known = values.filter((value) => typeof value === "number" && Number.isFinite(value));
  if (known.length < 2) return null;
  const low = field.config.min ?? Math.min(...known);
  const high = field.config.max ?? Math.max(...known);
  const y = (value) => (high === low ? 20 : 38 - ((value - low) / (high - low)) * 36);
  const points = values.map((value, index) => (typeof value === "number" ? `${(index / (values.length - 1)) * 100},${y(value)}` : "")).filter(Boolean);
  return svg(
    "svg",
    { viewBox: "0 0 100 40", preserveAspectRatio: "none", class: "spark" },
    svg("polygon", { points: `0,40 ${points.join(" ")} 100,40`, fill: withAlpha(color, 0.25) }),
    svg("polyline", { points: points.join(" "), fill: "none", stroke: withAlpha(color, 0.8), "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" }),
  );
}

const extent = (field, entries) => {
  const known = entries.map(({ value }) => value).filter(Number.isFinite);
  const low = field.config.min ?? Math.min(0, ...known);
  const high = field.config.max ?? Math.max(...known, low);
  return [low, high > low ? high : low + 1];
};

/** The steps as shares of a gauge's length: {from, to, color}, 0 to 1. */
function zones(field, low, high) {
  const share = (value) => Math.min(Math.max((value - low) / (high - low), 0), 1);
  const list = steps(field);
  return list.map(({ from, color }, index) => ({ from: share(from), to: share(list[index + 1]?.from ?? high), at: from, color })).filter(({ from, to }) => to > from);
}

const START = -0.62 * Math.PI; // a gauge is open at the bottom
const point = (share, radius) => {
  const angle = START + share * -2 * START - Math.PI / 2;
  return [50 + radius * Math.cos(angle), 50 + radius * Math.sin(angle)];
};
const arc = (from, to, radius) => {
  const [[x1, y1], [x2, y2]] = [point(from, radius), point(to, radius)];
  return `M ${x1} ${y1} A ${radius} ${radius} 0 ${(to - from) * -2 * START > Math.PI ? 1 : 0} 1 ${x2} ${y2}`;
};

export function gauge(body, { panel, frames }) {
  const { reduceOptions, showThresholdMarkers = true, showThresholdLabels = false } = panel.options ?? {};
  const entries = reduced(frames, reduceOptions);
  if (!entries.length) return false;
  const dials = entries.map(({ field, value, text, color = colorOf("green"), label }) => {
    const [low, high] = extent(field, [{ value }]);
    const share = Math.min(Math.max(((value ?? low) - low) / (high - low), 0), 1);
    const marks = showThresholdMarkers ? zones(field, low, high) : [];
    const stroke = (from, to, radius, width, ink) => svg("path", { d: arc(from, to, radius), fill: "none", stroke: ink, "stroke-width": width });
    const [limit, tick] = [marks.filter(({ at }) => Number.isFinite(at)), (at) => point((at - low) / (high - low), 50)];
    return element(
      "figure.dial",
      { title: label },
      svg(
        "svg",
        { viewBox: "-8 0 116 78" },
        stroke(0, 1, 36, 11, "rgb(204 204 220 / 0.1)"),
        share > 0 ? stroke(0, share, 36, 11, color) : "",
        ...marks.map(({ from, to, color: ink }) => stroke(from, to, 43.5, 2, ink)),
        ...(showThresholdLabels ? limit.map(({ at }) => svg("text", { x: tick(at)[0], y: tick(at)[1], class: "limit" }, format(at, field.config.unit, field.config.decimals))) : []),
        svg("text", { x: 50, y: 58, class: "value", fill: color }, text),
      ),
      element("figcaption", {}, label),
    );
  });
  body.append(element("div.dials", {}, dials));
}

export function barGauge(body, { panel, frames }) {
  const { reduceOptions, orientation = "auto", displayMode = "gradient", showUnfilled = true, valueMode = "color", sizing = "auto", maxVizHeight = 300 } = panel.options ?? {};
  const entries = reduced(frames, reduceOptions);
  if (!entries.length) return false;
  const upright = orientation === "vertical" || (orientation === "auto" && body.clientWidth > 2 * body.clientHeight && entries.length < 8);
  const [low, high] = extent(entries[0].field, entries);
  const bars = entries.map(({ field, value, text, color = colorOf("green"), label }) => {
    const share = `${Math.min(Math.max(((value ?? low) - low) / (high - low), 0), 1) * 100}%`;
    const stops = zones(field, low, high).map(({ from, color: ink }) => `${ink} ${from * 100}%`);
    const fill = displayMode === "gradient" && stops.length > 1 ? `linear-gradient(${upright ? "to top" : "to right"}, ${stops.join(", ")})` : color;
    return element(
      "div.bar",
      {},
      element("span.label", { title: label }, label),
      element(
        displayMode === "lcd" ? "div.track.lcd" : "div.track",
        { style: { background: showUnfilled ? undefined : "none" } },
        element("div.fill", { style: { [upright ? "height" : "width"]: share, background: fill } }),
      ),
      valueMode === "hidden" ? null : element("b", { style: { color: valueMode === "text" ? undefined : color } }, text),
    );
  });
  const thickest = sizing === "manual" ? maxVizHeight : 300;
  body.append(element(upright ? "div.bars.upright" : "div.bars", { style: { "max-height": upright ? undefined : `${bars.length * thickest}px` } }, bars));
}
