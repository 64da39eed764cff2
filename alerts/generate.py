"""Generates the rules that come from tables: `python -m alerts.generate`. `pulumi preview` fails while one is outdated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from alerts import model_servers, nvlink_rules, passages, sxid_rules, vocabulary, xid_rules
from alerts.model import RuleGroup, read_groups, rule_file

HERE: Final = Path(__file__).parent


def generated_groups() -> Mapping[Path, tuple[str, list[RuleGroup]]]:
    """Each generated rule file with its source table and its groups."""
    return {
        HERE / "rules" / "vocabulary.yaml": ("vocabulary.py", vocabulary.groups()),
        HERE / "rules" / "model-servers.yaml": ("model_servers.py", model_servers.metric_groups()),
        HERE / "rules" / "nvlink.yaml": ("nvlink.csv", nvlink_rules.metric_groups()),
        HERE / "rules" / "sxid.yaml": ("sxid.csv", sxid_rules.metric_groups()),
        HERE / "rules" / "xid-tables.yaml": ("xid.csv", xid_rules.table_groups()),
        HERE / "rules" / "xid.yaml": ("xid.csv", xid_rules.metric_groups()),
        HERE / "rules" / "amd-events.yaml": ("amd_events.csv", xid_rules.amd_groups()),
        HERE / "loki" / "xid.yaml": ("xid.csv and amd_events.csv", xid_rules.log_groups()),
    }


def generated_files() -> Mapping[Path, str]:
    """Each file that is generated, or has a generated passage, with its text."""
    return {
        path: f"# Generated from {source} by `python -m alerts.generate`; do not edit.\n{rule_file(groups)}"
        for path, (source, groups) in generated_groups().items()
    } | passages.written_anew()


def outdated() -> Mapping[Path, str]:
    """Generated files (well-formed) that differ from their source table, with that table."""
    whole = {path: source for path, (source, groups) in generated_groups().items() if read_groups(path) != groups}
    return whole | {path: "xid.csv" for path, text in passages.written_anew().items() if path.read_text() != text}


def main() -> None:
    for path, text in generated_files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
