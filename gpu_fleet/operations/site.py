"""`make site`: the documents as one tree of pages for MkDocs, with a reference generated from the code. The pages in docs/ stay
as they are, to be read where the repository is browsed; only their links are changed here.

    python -m gpu_fleet.operations.site build/site-pages [--repository https://github.com/example/gpu-fleet]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import alerts
import dashboards
from alerts import tables
from alerts.vocabulary import GROUPS, LABELS
from dashboards.layout import uid

_REPO: Final = Path(__file__).resolve().parents[2]
# Files outside docs/ that are pages of the site too.
_PAGES: Final = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "reporting-a-vulnerability.md",
    "docs/README.md": "tasks.md",
    "docs/pictures/README.md": "pictures/index.md",
    "alerts/README.md": "reference/rules.md",
    "gpu_fleet/toolchain/README.md": "reference/toolchain.md",
    "gpu_fleet/host/converge/README.md": "reference/converge.md",
}
_DIRECTORIES: Final = {"alerts/runbooks": "reference/alerts.md", "docs": "tasks.md", "docs/pictures": "pictures/index.md"}
_LINK: Final = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE: Final = re.compile(r"(?ms)^```.*?^```$")


# --- pages that exist as files ----------------------------------------------------------------------------------------------


def place(file: str) -> str | None:
    """Where a file of the repository is in the site; None: it is not a page or picture of it."""
    if file in _PAGES:
        return _PAGES[file]
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if file.startswith("alerts/runbooks/"):
        return file.removeprefix("alerts/")
    return _DIRECTORIES.get(file.rstrip("/"))


def moved(text: str, file: str, repository: str) -> str:
    """A page's text with links to where the pages are in the site. A file that is not in it is linked in `repository`, or only
    named, if that is empty."""
    here = PurePosixPath(place(file) or file).parent

    def link(found: re.Match[str]) -> str:
        picture, title, target = found.groups()
        path, hash_, anchor = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return found[0]
        source = os.path.normpath(PurePosixPath(file).parent / path)
        if (to := place(source)) is not None:
            return f"{picture}[{title}]({os.path.relpath(to, here)}{hash_}{anchor})"
        if repository:
            return f"{picture}[{title}]({repository}/blob/main/{source}{hash_}{anchor})"
        return title if title.strip("`") == source else f"{title} (`{source}`)"

    parts, end = [], 0
    for block in _FENCE.finditer(text):
        parts += [_LINK.sub(link, text[end : block.start()]), block[0]]
        end = block.end()
    return _lists("".join([*parts, _LINK.sub(link, text[end:])]))


def _lists(text: str) -> str:
    """GitHub begins a list without an empty line before it; Python-Markdown needs the line."""
    lines: list[str] = []
    in_code = False
    for line in text.splitlines():
        in_code ^= line.lstrip().startswith("```")
        is_item = re.match(r"(- |\* |\d+\. )", line) is not None
        if not in_code and is_item and lines and lines[-1].strip() and not re.match(r"\s*(- |\* |\d+\. |  )", lines[-1]):
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"


def _written() -> Iterator[tuple[str, str]]:
    for file in [*_PAGES, *_below("docs", "*.md"), *_below("alerts/runbooks", "*.md")]:
        yield file, (_REPO / file).read_text()


def _below(directory: str, pattern: str) -> list[str]:
    found = sorted(path.relative_to(_REPO).as_posix() for path in (_REPO / directory).rglob(pattern))
    return [path for path in found if path not in _PAGES]


# --- pages that are generated -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Key:
    path: str
    type: str
    default: str
    meaning: str


def stack_file() -> str:
    """Every key of a stack file, from the schema that editors use."""
    schema = json.loads((_REPO / "gpu_fleet/stackfile/stack.schema.json").read_text())
    definitions: Mapping[str, Any] = schema["$defs"]
    text = [
        "# Stack file",
        "",
        "Every key of `Pulumi.<stack>.yaml`. An editor that supports the schema in the first line of the file completes and",
        "checks them; `make preview STACK=s` reports all errors at once, each with its place, before anything is changed.",
        "",
    ]
    for key, node in schema["properties"]["config"]["properties"].items():
        text += [f"## `{key}`", "", _sentence(node, definitions), ""]
        keys = [row for name in _sections(node) for row in _keys(definitions[name], definitions, "", {name})]
        if keys:
            text += _table(("key", "value", "default", "meaning"), [(f"`{k.path}`", k.type, k.default, k.meaning) for k in keys])
        else:
            text += [f"Value: {_type(node)}.", ""]
    return "\n".join(text)


def _sentence(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if meaning := node.get("description"):
        return str(meaning)
    return " ".join(str(definitions[name].get("description", "")) for name in _sections(node))


def _variants(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = [variant for key in ("anyOf", "oneOf") for variant in node.get(key, ())] or [node]
    return [variant for variant in found if variant.get("type") != "null"]


def _sections(node: Mapping[str, Any]) -> list[str]:
    """The named sections that a value consists of, directly, as items or as values of a mapping."""
    names: list[str] = []
    for variant in _variants(node):
        if "$ref" in variant:
            names.append(str(variant["$ref"]).rpartition("/")[2])
        for inner in _inner(variant):
            names += _sections(inner)
    return list(dict.fromkeys(names))


def _inner(variant: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = [variant.get("items"), variant.get("additionalProperties"), *variant.get("patternProperties", {}).values()]
    return [inner for inner in found if isinstance(inner, dict)]


def _keys(section: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str, above: set[str]) -> Iterator[_Key]:
    for name, node in section.get("properties", {}).items():
        path = f"{prefix}{name}"
        is_list = any(variant.get("type") == "array" for variant in _variants(node))
        is_mapping = any(_inner(variant) and variant.get("type") == "object" for variant in _variants(node))
        yield _Key(path, _type(node), _default(node), _cell(_sentence(node, definitions)))
        for inner in _sections(node):
            if inner not in above:
                below = f"{path}[]." if is_list else f"{path}.NAME." if is_mapping else f"{path}."
                yield from _keys(definitions[inner], definitions, below, {*above, inner})


def _type(node: Mapping[str, Any]) -> str:
    kinds = []
    for variant in _variants(node):
        if "enum" in variant:
            kinds.append(", ".join(f"`{value}`" for value in variant["enum"]))
        elif "const" in variant:
            kinds.append(f"`{variant['const']}`")
        elif "x-expected" in variant:
            kinds.append(str(variant["x-expected"]))
        elif variant.get("type") == "array":
            kinds.append(f"list of: {_type(variant['items'])}" if isinstance(variant.get("items"), dict) else "list")
        elif "$ref" in variant or variant.get("type") == "object":
            kinds.append("mapping")
        else:
            kinds.append(str(variant.get("type", "")).replace("boolean", "true or false"))
    return _cell("; or ".join(dict.fromkeys(kind for kind in kinds if kind)))


def _default(node: Mapping[str, Any]) -> str:
    default = node.get("default")
    return "" if default in (None, {}, []) else _cell(f"`{json.dumps(default)}`")


def alert_list() -> str:
    """Every alert with its severity, its condition's duration and its runbook."""
    text = ["# Alerts", "", "Which incident raises which alert: [what is monitored](../alert-coverage.md).", ""]
    runbooks = {path.stem for path in (_REPO / "alerts/runbooks").glob("*.md")}
    titles = {"mimir": "Evaluated by Mimir or Prometheus", "loki": "Evaluated by Loki", "grafana": "Evaluated by Grafana only"}
    for backend, title in titles.items():
        rows: dict[tuple[str, str, str], tuple[str, ...]] = {}
        for group in alerts.rule_groups(backend):  # type: ignore[arg-type]
            for rule in group.rules:
                if name := rule.get("alert"):
                    labels = rule.get("labels", {})
                    linked = f"[{name}](../runbooks/{name}.md)" if name in runbooks else str(name)
                    severity, lasts = str(labels.get("severity", "")), str(rule.get("for", "at once"))
                    summary = str(rule.get("annotations", {}).get("summary", ""))
                    rows.setdefault((str(name), severity, lasts), (linked, severity, lasts, _cell(_code(summary)), group.name))
        if rows:
            text += [f"## {title}", "", *_table(("alert", "severity", "for", "summary", "group"), rows.values())]
    return "\n".join(text)


def xids() -> str:
    rows = tables.entries(_REPO / "alerts/xid.csv", dict)
    names = list(rows[0])
    text = [
        "# XIDs",
        "",
        "The table that decides severity and action of each code: `alerts/xid.csv`. The actions are explained in the runbook",
        "[GpuXid](../runbooks/GpuXid.md).",
        "",
    ]
    return "\n".join([*text, *_table(names, [[_cell(row[name]) for name in names] for row in rows])])


def vocabulary() -> str:
    """The series that rules and dashboards use, by group, with the exporters that provide each."""
    text = [
        "# Vocabulary",
        "",
        "Recording rules convert the metrics of every exporter to these series, in SI units and ratios. Alerts and dashboards",
        "use no other GPU metrics. The last part of a name is its unit.",
        "",
        f"Labels of every series, as far as the exporter reports them: {', '.join(f'`{label}`' for label in LABELS)}.",
        "",
    ]
    for group, members in GROUPS.items():
        rows = [
            (
                f"`{series.name}`",
                series.unit,
                _cell(series.meaning),
                ", ".join(dict.fromkeys(source.exporter for source in series.sources)),
                ", ".join(f"`{label}`" for label in series.extra_labels),
            )
            for series in members
        ]
        text += [f"## {group}", "", *_table(("series", "unit", "meaning", "from", "additional labels"), rows)]
    return "\n".join(text)


def dashboard_list() -> str:
    """Every dashboard with its picture and what each of its panels shows."""
    pictures = {path.stem.removesuffix("-1280"): path.name for path in (_REPO / "docs/pictures").glob("*-1280.png")}
    text = ["# Dashboards", "", "Rendered by the lab's stand-in for Grafana over a simulated fleet.", ""]
    for model in dashboards.models():
        text += [f"## {model['title']}", "", str(model.get("description", "")), ""]
        name = next((name for name in pictures if uid(name) == model["uid"]), None)
        if name:
            text += [f"![{model['title']}](../pictures/{pictures[name]})", ""]
        rows = [
            (_cell(panel["title"]), panel["type"], _cell(panel.get("description", "")))
            for panel in _panels(model["panels"])
            if panel.get("title") and panel["type"] != "row"
        ]
        text += _table(("panel", "type", "shows"), rows)
    return "\n".join(text)


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", []))


def commands() -> str:
    """The make targets, by section of the Makefile."""
    text = ["# Commands", "", "`make` without a target prints this list."]
    rows: list[tuple[str, str]] = []
    for line in (_REPO / "Makefile").read_text().splitlines():
        if title := re.match(r"# --- (.*?) -+$", line):
            text += ["", *(_table(("command", "what it does"), rows) if rows else []), f"## {title[1].capitalize()}", ""]
            rows = []
        elif target := re.match(r"([a-z-]+):[^#]*## (.*)$", line):
            rows.append((f"`make {target[1]}`", _cell(_code(target[2]))))
    return "\n".join([*text, *_table(("command", "what it does"), rows)])


_GENERATED: Final = {
    "reference/stack-file.md": stack_file,
    "reference/alerts.md": alert_list,
    "reference/xids.md": xids,
    "reference/vocabulary.md": vocabulary,
    "reference/dashboards.md": dashboard_list,
    "reference/commands.md": commands,
}


def _table(head: Any, rows: Any) -> list[str]:
    lines = [" | ".join(head), " | ".join("---" for _ in head), *(" | ".join(row) for row in rows)]
    return [*(f"| {line} |" for line in lines), ""]


def _cell(text: str) -> str:
    return " ".join(str(text).replace("|", "\\|").split())


def _code(text: str) -> str:
    """Of a template, the names of the labels and values that are filled in; other placeholders as they are, not as markup."""
    plain = re.sub(r"\{\{ *if .*\{\{ *end *\}\}", "…", text)
    named = re.sub(r"\{\{[^}]*?\$(?:labels\.)?(\w+)[^}]*\}\}", r"*\1*", plain)
    return re.sub(r"(\{\{.*?\}\}|<[a-z]+>)", r"`\1`", named)


# --- the tree ---------------------------------------------------------------------------------------------------------------


def pages(repository: str = "") -> dict[str, str]:
    """Path in the site -> text, of every page."""
    found = {place(file) or file: moved(text, file, repository) for file, text in _written()}
    return found | {path: page() for path, page in _GENERATED.items()}


def write(to: Path, repository: str = "") -> None:
    """Replaces the directory `to`."""
    shutil.rmtree(to, ignore_errors=True)
    for path, text in pages(repository).items():
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        (to / path).write_text(text)
    for picture in (_REPO / "docs").rglob("*.png"):
        target = to / picture.relative_to(_REPO / "docs")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", type=Path)
    parser.add_argument("--repository", default="", help="where the source can be browsed; default: files are named, not linked")
    arguments = parser.parse_args()
    write(arguments.to, arguments.repository.rstrip("/"))


if __name__ == "__main__":
    main()
