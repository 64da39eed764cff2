"""Writes the rule files that come from tables: `python -m alerts.generate`. A test fails while one of them is not current."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from alerts import vocabulary, xid_rules
from alerts.model import rule_file

HERE: Final = Path(__file__).parent


def generated_files() -> Mapping[Path, str]:
    """What each generated rule file holds."""
    files = {
        HERE / "rules" / "vocabulary.yaml": ("vocabulary.py", vocabulary.groups()),
        HERE / "rules" / "xid.yaml": ("xid.csv", xid_rules.metric_groups()),
        HERE / "loki" / "xid.yaml": ("xid.csv", xid_rules.log_groups()),
    }
    return {
        path: f"# Generated from {source} by `python -m alerts.generate`; do not edit.\n{rule_file(groups)}"
        for path, (source, groups) in files.items()
    }


def main() -> None:
    for path, text in generated_files().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
