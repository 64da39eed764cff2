// One panel: its frame, its queries, and what it says when there is nothing to draw.

import { element, safeUrl } from "./dom.js";
import { configure } from "./fields.js";
import * as heatmap from "./panels/heatmap.js";
import { barGauge, gauge, stat } from "./panels/single.js";
import * as states from "./panels/states.js";
import * as table from "./panels/table.js";
import { logs, text } from "./panels/texts.js";
import * as timeseries from "./panels/timeseries.js";
import { query } from "./sources.js";
import { transform } from "./transformations.js";

// Each draws into the body: returns false for nothing to draw, and may return what frees it.
const KINDS = {
  timeseries: timeseries.draw,
  stat,
  gauge,
  bargauge: barGauge,
  table: table.draw,
  "state-timeline": states.draw,
  "status-history": states.draw,
  heatmap: heatmap.draw,
  logs,
  text,
};

export class Panel {
  constructor(model, board) {
    this.model = model;
    this.board = board;
    this.body = element("div.body");
    this.title = element("h3", {}, element("span"));
    this.element = element(model.transparent ? "article.panel.transparent" : "article.panel", {}, element("header", {}, this.title), this.body);
    this.element.dataset.type = model.type;
    this.element.dataset.panel = model.id;
    this.state = "waiting";
    const { x, y, w, h } = model.gridPos;
    Object.assign(this.element.style, { gridColumn: `${x + 1} / span ${w}`, gridRow: `${y - board.top + 1} / span ${h}` });
  }

  set state(name) {
    this.element.dataset.state = name; // waiting, loading, drawn, empty, error: tests read it
  }

  /** Asks and draws; what was drawn before stays until the answer is there. Never throws. */
  async refresh(context, marks) {
    this.head(context);
    this.element.classList.add("loading");
    try {
      const draw = KINDS[this.model.type];
      if (this.model.repeat) throw new Error(`the preview does not repeat panels (by ${this.model.repeat}); Grafana does`);
      if (!draw) throw new Error(`the preview draws no ${this.model.type}; Grafana may`);
      const frames = await this.frames(context);
      this.clear();
      const drawn = draw(this.body, { panel: this.model, frames, context, marks, zoom: this.board.zoom });
      if (drawn === false) this.says("empty", this.model.fieldConfig?.defaults?.noValue ?? "No data");
      else {
        this.free = drawn;
        this.state = "drawn";
      }
    } catch (error) {
      this.clear();
      this.says("error", error.message);
    }
    this.element.classList.remove("loading");
  }

  async frames(context) {
    const targets = (this.model.targets ?? []).filter(({ hide }) => !hide);
    const tables = targets.filter(({ format }) => format === "table").length;
    const points = Math.max(Math.floor(this.body.clientWidth), 100);
    const asked = targets.map((target) => {
      const valueName = tables > 1 ? `Value #${target.refId}` : "Value";
      return query({ ...target, valueName }, this.model, context, points);
    });
    return configure(transform((await Promise.all(asked)).flat(), this.model.transformations), this.model);
  }

  clear() {
    this.free?.();
    this.free = null;
    this.body.replaceChildren();
  }

  says(state, words) {
    this.state = state;
    this.body.append(element("p.says", {}, words));
  }

  head(context) {
    const links = (this.model.links ?? []).map(({ title, url, targetBlank }) => element("a.link", { href: safeUrl(context.text(url)), target: targetBlank ? "_blank" : undefined, title: context.text(title) }, "↗ ", context.text(title)));
    const queries = (this.model.targets ?? []).map(({ refId, expr }) => element("pre", {}, `${refId}  ${expr ?? ""}`));
    const about = element("details.about", {}, element("summary", { title: "Description and queries" }, "i"), element("div.sheet", {}, element("p", {}, context.text(this.model.description ?? "")), queries));
    const open = this.title.parentElement.querySelector("details.about")?.open;
    about.open = Boolean(open);
    this.title.firstChild.textContent = context.text(this.model.title ?? "");
    this.title.title = this.model.description ?? "";
    this.title.parentElement.replaceChildren(this.title, ...(links.length ? [element("nav", {}, links)] : []), about);
  }
}
