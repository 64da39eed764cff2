"""Writes the rule files that come from tables: `python -m alerts.generate`. `pulumi preview` ends while one is not current."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from alerts import vocabulary, xid_rules
from alerts.model import RuleGroup, read_groups, rule_file

HERE: Final = Path(__file__).parent


def generated_groups() -> Mapping[Path, tuple[str, list[RuleGroup]]]:
    """Each generated rule file: the table it comes from, and what it holds."""
    return {
        HERE / "rules" / "vocabulary.yaml": ("vocabulary.py", vocabulary.groups()),
        HERE / "rules" / "xid.yaml": ("xid.csv", xid_rules.metric_groups()),
        HERE / "loki" / "xid.yaml": ("xid.csv", xid_rules.log_groups()),
    }


def generated_files() -> Mapping[Path, str]:
    """What each generated rule file says."""
    return {
        path: f"# Generated from {source} by `python -m alerts.generate`; do not edit.\n{rule_file(groups)}"
        for path, (source, groups) in generated_groups().items()
    }


def outdated() -> Mapping[Path, str]:
    """Generated files, well-formed ones, that say something else than the table which they come from, with that table."""
    return {path: source for path, (source, groups) in generated_groups().items() if read_groups(path) != groups}


def main() -> None:
    for path, text in generated_files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
