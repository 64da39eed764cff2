// The bar above a dashboard: variables, links, time range, refresh.

import { element, safeUrl } from "./dom.js";
import { QUICK_RANGES, parseTime, rangeText } from "./time.js";
import { ALL } from "./variables.js";

const REFRESH = ["", "5s", "10s", "30s", "1m", "5m", "15m"];

/** `changed(variable)` is called after a choice. */
export function variablePicker(variable, changed) {
  const { model } = variable;
  if (model.hide === 2) return null;
  const name = model.hide === 1 ? null : element("span.name", {}, model.label || model.name, " ");
  const choose = (chosen) => ((variable.chosen = chosen), changed(variable));
  if (model.type === "textbox") {
    return element("label.variable", {}, name, element("input", { value: variable.chosen[0] ?? "", onchange: (event) => choose([event.target.value]) }));
  }
  const entries = [...(variable.hasAll ? [{ value: ALL, text: "All" }] : []), ...variable.options];
  const boxes = entries.map(({ value, text }) => {
    const pick = () => {
      if (!variable.multi || value === ALL) return choose([value]);
      const others = variable.chosen.filter((one) => one !== ALL && one !== value);
      const chosen = variable.chosen.includes(value) ? others : [...others, value];
      choose(chosen.length ? chosen : variable.hasAll ? [ALL] : [value]);
    };
    return element("label", {}, element("input", { type: variable.multi ? "checkbox" : "radio", checked: variable.chosen.includes(value), onchange: pick }), text);
  });
  const menu = element("div.menu", {}, boxes, variable.error ? element("p.wrong", {}, variable.error) : null);
  const summary = element("summary", { title: variable.error || undefined }, name, element("b", {}, variable.error ? "⚠ error" : variable.shown));
  return dropdown(element(variable.error ? "details.variable.broken" : "details.variable", { "data-variable": model.name }, summary, menu));
}

export function rangePicker(range, changed) {
  const quick = QUICK_RANGES.map(([from, text]) => element("button", { onclick: () => changed(from, "now") }, text));
  const input = (value) => element("input", { value, size: 20 });
  const [from, to, wrong] = [input(range.from), input(range.to), element("p.wrong")];
  const apply = () => {
    try {
      if (parseTime(from.value, Date.now()) >= parseTime(to.value, Date.now(), true)) throw new Error("the range ends before it starts");
      changed(from.value, to.value);
    } catch (error) {
      wrong.textContent = error.message;
    }
  };
  const own = element("div.own", {}, element("label", {}, "From ", from), element("label", {}, "To ", to), element("button", { onclick: apply }, "Apply"), wrong);
  return dropdown(element("details.range", {}, element("summary", {}, "◷ ", element("b", {}, rangeText(range.from, range.to))), element("div.menu", {}, own, quick)));
}

export function refreshPicker(every, now, changed) {
  const known = REFRESH.includes(every) ? REFRESH : [...REFRESH, every];
  const select = element("select", { title: "Refresh every", onchange: (event) => changed(event.target.value) }, known.map((value) => element("option", { value, selected: value === every }, value || "Off")));
  return element("span.refresh", {}, element("button", { title: "Refresh now", onclick: now }, "⟳ Refresh"), select);
}

/** Links of the dashboard: to other dashboards by tag, or to an address. `found`: dashboards by link. */
export function links(list, found, context) {
  const tail = ({ includeVars, keepTime }) => [includeVars && context.text("${__all_variables}"), keepTime && context.text("${__url_time_range}")].filter(Boolean).join("&");
  const address = (url, link) => safeUrl(url + (tail(link) ? (url.includes("?") ? "&" : "?") + tail(link) : ""));
  return list.map((link, index) => {
    const target = link.targetBlank ? "_blank" : undefined;
    if (link.type !== "dashboards") return element("a.button", { href: address(context.text(link.url ?? ""), link), target, title: link.tooltip }, link.title);
    const anchors = found[index].map(({ title, url }) => element(link.asDropdown ? "a" : "a.button", { href: address(url, link), target }, title));
    return link.asDropdown ? dropdown(element("details.links", {}, element("summary", {}, `☰ ${link.title}`), element("div.menu", {}, anchors))) : anchors;
  });
}

/** Closes with Escape and when something else is clicked. */
function dropdown(details) {
  details.addEventListener("keydown", (event) => event.key === "Escape" && (details.open = false));
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    const away = (event) => {
      if (details.contains(event.target)) return;
      details.open = false;
      document.removeEventListener("click", away, true);
    };
    document.addEventListener("click", away, true);
  });
  return details;
}
