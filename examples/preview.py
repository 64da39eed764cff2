"""Previews every example stack against an empty state and prints one text, Markdown for the comment on a pull request.

    python examples/preview.py > preview.md      exits with 1 if a preview failed; the text says which and why

A preview runs the program and our provider, contacts no host and needs no credentials: it shows the result of a stack file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LONGEST_COMMENT = 60_000  # GitHub rejects a body of more than 65,536 characters


def preview(stack_file: Path, home: Path) -> tuple[bool, str]:
    stack = stack_file.stem.removeprefix("Pulumi.")
    # A project with the same name in `home`: pulumi writes the stack's salt beside the Pulumi.yaml that it finds.
    (home / "Pulumi.yaml").write_text((HERE.parent / "Pulumi.yaml").read_text())
    config = home / stack_file.name
    config.write_text(stack_file.read_text())
    environment = {
        **os.environ,
        "PULUMI_BACKEND_URL": f"file://{home}",
        "PULUMI_CONFIG_PASSPHRASE": "an empty state contains no secret",
        "PULUMI_OPTION_CONFIG_FILE": str(config),
        "GRAFANA_AUTH": "anonymous",  # the Grafana provider requires it even for a preview
    }
    subprocess.run(["pulumi", "--cwd", home, "stack", "init", stack], env=environment, check=True, capture_output=True)
    done = subprocess.run(
        ["pulumi", "preview", "--non-interactive", "--stack", stack, "--diff", "--suppress-progress"],
        cwd=HERE.parent,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode == 0, COLOUR.sub("", done.stdout).strip()


def main() -> int:
    failed = 0
    sections = []
    files = sorted(HERE.glob("Pulumi.*.yaml"))
    with tempfile.TemporaryDirectory() as home:
        for file in files:
            ok, text = preview(file, Path(home))
            failed += not ok
            summary = (
                next((line.strip() for line in reversed(text.splitlines()) if "to create" in line), "") if ok else "**failed**"
            )
            room = LONGEST_COMMENT // len(files)
            cut = text if len(text) <= room else text[: room // 2] + "\n…\n" + text[-room // 2 :]
            sections.append(f"<details><summary><code>{file.name}</code>: {summary}</summary>\n\n```\n{cut}\n```\n\n</details>")
    print("### `pulumi preview` of the example stacks\n\nAgainst an empty state.\n\n" + "\n\n".join(sections))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
