// Panels of text: log lines, and text in Markdown.

import { element, safeUrl } from "../dom.js";
import { dateText } from "../time.js";

const LEVELS = { emerg: "critical", alert: "critical", crit: "critical", critical: "critical", fatal: "critical", err: "error", error: "error", warn: "warning", warning: "warning", notice: "info", info: "info", debug: "debug" };

export function logs(body, { panel, frames }) {
  const rows = frames.filter(({ isLog }) => isLog).flatMap(({ fields: [times, lines, labels] }) => lines.values.map((line, row) => ({ time: times.values[row], line, labels: labels.values[row] })));
  if (!rows.length) return false;
  const { showTime = true, wrapLogMessage, sortOrder = "Descending", enableLogDetails = true, showLabels } = panel.options ?? {};
  rows.sort((a, b) => (sortOrder === "Ascending" ? a.time - b.time : b.time - a.time));
  const lines = rows.map(({ time, line, labels }) => {
    const summary = element("summary", {}, showTime ? element("time", {}, dateText(time)) : null, showLabels ? element("em", {}, Object.values(labels).join(" ")) : null, element("code", {}, line));
    const level = LEVELS[(labels.detected_level ?? labels.level ?? labels.severity ?? "").toLowerCase()] ?? "unknown";
    const details = enableLogDetails ? element("dl", {}, Object.entries(labels).sort().map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])) : null;
    return element(`details.log.${level}`, {}, summary, details);
  });
  body.append(element(wrapLogMessage ? "div.logs.wrap" : "div.logs", {}, lines));
}

export function text(body, { panel, context }) {
  const { mode = "markdown", content = "" } = panel.options ?? {};
  const words = context.text(content);
  if (!words.trim()) return false;
  body.append(element("div.prose", {}, mode === "markdown" ? markdown(words) : element("pre", {}, words)));
}

/** Headings, lists, code, quotes and paragraphs; what is more stays as it is written. */
function markdown(source) {
  return source.split(/\n{2,}/).flatMap((block) => {
    const rows = block.split("\n").filter(Boolean);
    const heading = /^(#{1,6}) (.*)/.exec(rows[0] ?? "");
    if (heading) return [element(`h${heading[1].length}`, {}, inline(heading[2])), ...(rows.length > 1 ? markdown(rows.slice(1).join("\n")) : [])];
    if (/^```/.test(rows[0] ?? "")) return [element("pre", {}, rows.slice(1, -1).join("\n"))];
    if (rows.every((row) => /^\s*[-*] /.test(row))) return [element("ul", {}, rows.map((row) => element("li", {}, inline(row.replace(/^\s*[-*] /, "")))))];
    if (rows.every((row) => /^\s*\d+\. /.test(row))) return [element("ol", {}, rows.map((row) => element("li", {}, inline(row.replace(/^\s*\d+\. /, "")))))];
    if (rows.length > 1 && /^\|?[\s:|-]+\|?$/.test(rows[1])) return [gridOf(rows)];
    return rows.length ? [element("p", {}, inline(rows.join(" ")))] : [];
  });
}

function gridOf([head, , ...rows]) {
  const cells = (row) => row.replace(/^\||\|$/g, "").split("|").map((cell) => inline(cell.trim()));
  return element("table.grid", {}, element("thead", {}, element("tr", {}, cells(head).map((cell) => element("th", {}, cell)))), element("tbody", {}, rows.map((row) => element("tr", {}, cells(row).map((cell) => element("td", {}, cell))))));
}

function inline(words) {
  return words.split(/(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\([^)\s]+\))/).map((piece) => {
    if (piece.startsWith("`")) return element("code", {}, piece.slice(1, -1));
    if (piece.startsWith("**")) return element("b", {}, piece.slice(2, -2));
    const link = /^\[([^\]]+)\]\(([^)\s]+)\)$/.exec(piece);
    return link ? element("a", { href: safeUrl(link[2]) }, link[1]) : piece;
  });
}
