// A stored dashboard, drawn: reads its model, keeps time range and variables in the URL as Grafana does, and refreshes.

import { colorOf } from "./colors.js";
import { element } from "./dom.js";
import { Panel } from "./panel.js";
import { dashboardsTagged, marks, model as readModel } from "./sources.js";
import { parseTime, seconds } from "./time.js";
import { links, rangePicker, refreshPicker, variablePicker } from "./toolbar.js";
import { Context, Variable } from "./variables.js";

class Board {
  constructor(model, root) {
    this.model = model;
    this.root = root;
    const url = new URLSearchParams(location.search);
    this.raw = { from: url.get("from") ?? model.time?.from ?? "now-6h", to: url.get("to") ?? model.time?.to ?? "now" };
    this.every = url.get("refresh") ?? (model.refresh || "");
    this.variables = (model.templating?.list ?? []).map((one) => new Variable(one, url.getAll(`var-${one.name}`)));
    this.bar = element("div.toolbar");
    this.trouble = element("p.trouble", { hidden: true });
    this.sections = sectionsOf(model.panels ?? []).map((section) => this.section(section));
    root.append(element("div.top", {}, element("h1", { title: model.description ?? "" }, model.title), this.bar), this.trouble, ...this.sections.map((section) => section.element));
  }

  section({ row, panels }) {
    const board = { top: Math.min(...panels.map(({ gridPos }) => gridPos.y)), zoom: (from, to) => this.goTo(String(Math.round(from)), String(Math.round(to))) };
    const section = { row, panels: panels.map((model) => new Panel(model, board)), collapsed: Boolean(row?.collapsed) };
    const grid = element("div.grid-24", { hidden: section.collapsed }, section.panels.map((panel) => panel.element));
    section.heading = row ? element("h2", {}) : null;
    section.element = element("section", {}, section.heading, grid);
    section.title = () => {
      if (!row) return;
      const flip = () => ((section.collapsed = !section.collapsed), (grid.hidden = section.collapsed), section.title(), section.collapsed || this.draw([section]));
      const words = `${section.collapsed ? "▸" : "▾"} ${this.context().text(row.title ?? "")}`;
      section.heading.replaceChildren(element("button", { onclick: flip }, words), ...(section.collapsed ? [element("small", {}, `${panels.length} panels`)] : []));
    };
    return section;
  }

  context() {
    const now = Date.now();
    return new Context({ from: parseTime(this.raw.from, now), to: parseTime(this.raw.to, now, true), raw: this.raw }, this.variables);
  }

  /** Variables in their order, as each may depend on those before it; then the panels. */
  async refresh() {
    document.body.dataset.state = "loading";
    for (const variable of this.variables) await variable.load(this.context());
    await this.toolbar();
    this.remember();
    await this.draw(this.sections.filter(({ collapsed }) => !collapsed));
    document.body.dataset.state = "settled"; // tests and the photographer wait for it
    this.again();
  }

  async draw(sections) {
    const context = this.context();
    for (const section of sections) section.title();
    for (const section of this.sections) section.title();
    const found = await this.marks(context);
    await Promise.all(sections.flatMap((section) => section.panels).map((panel) => panel.refresh(context, found)));
  }

  async marks(context) {
    const wanted = (this.model.annotations?.list ?? []).filter(({ enable, builtIn }) => enable && !builtIn);
    const problems = [];
    const found = await Promise.all(
      wanted.map(async (annotation) => {
        try {
          const color = colorOf(annotation.iconColor ?? "red");
          return (await marks(annotation, context)).map((mark) => ({ ...mark, color }));
        } catch (error) {
          problems.push(`annotation ${annotation.name}: ${error.message}`);
          return [];
        }
      }),
    );
    this.trouble.hidden = !problems.length;
    this.trouble.textContent = problems.join("; ");
    return found.flat();
  }

  async toolbar() {
    const list = this.model.links ?? [];
    const found = await Promise.all(list.map((link) => (link.type === "dashboards" ? dashboardsTagged(link.tags ?? []) : [])));
    const open = this.bar.querySelector("details[open][data-variable]")?.dataset.variable;
    const choice = () => this.refresh();
    this.bar.replaceChildren(
      ...this.variables.map((variable) => variablePicker(variable, choice)).filter(Boolean),
      element("span.space"),
      ...links(list, found, this.context()).flat(),
      rangePicker(this.raw, (from, to) => this.goTo(from, to)),
      refreshPicker(this.every, () => this.refresh(), (every) => ((this.every = every), this.remember(), this.again())),
    );
    const again = open && this.bar.querySelector(`details[data-variable="${CSS.escape(open)}"]`);
    if (again) again.open = true; // several values are chosen one after the other
  }

  goTo(from, to) {
    this.raw = { from, to };
    return this.refresh();
  }

  again() {
    clearTimeout(this.timer);
    const wait = seconds(this.every);
    if (wait) this.timer = setTimeout(() => (document.hidden ? this.again() : this.refresh()), wait * 1e3);
  }

  remember() {
    const url = new URLSearchParams({ from: this.raw.from, to: this.raw.to });
    if (this.every) url.set("refresh", this.every);
    for (const { name, chosen } of this.variables) for (const value of chosen) url.append(`var-${name}`, value);
    history.replaceState(null, "", `?${url}`);
  }
}

/** Panels under the row they belong to. Those of a collapsed row lie inside it, those of an open one follow it. */
function sectionsOf(panels) {
  const sections = [{ row: null, panels: [] }];
  const order = [...panels].sort((a, b) => a.gridPos.y - b.gridPos.y || a.gridPos.x - b.gridPos.x);
  for (const panel of order) {
    if (panel.type === "row") sections.push({ row: panel, panels: [...(panel.panels ?? [])] });
    else sections.at(-1).panels.push(panel);
  }
  return sections.filter(({ row, panels: inside }) => row || inside.length);
}

const root = document.querySelector("main");
try {
  const model = await readModel(root.dataset.uid);
  await new Board(model, root).refresh();
} catch (error) {
  root.append(element("p.trouble", {}, error.message));
  document.body.dataset.state = "failed";
}
