"""`make test OFFICIAL=1`: the pinned charts as their publishers serve them, rendered with the values of the examples.

    python -m tests.kubernetes.official_charts

`make test` itself needs no internet, so its charts are made for the tests.
"""

from __future__ import annotations

import sys

from gpu_fleet.operations.pr_report.pictures import pictures
from tests.checkout import REPO


def main() -> int:
    """Exit status: 1 when a chart was not rendered, or renders nothing."""
    files = {
        file.name.split(".")[1]: str(file.relative_to(REPO)) for file in sorted(REPO.glob("examples/kubernetes/Pulumi.*.yaml"))
    }
    failed = False
    for stack, picture in pictures(REPO, files).items():
        for name, one in picture.of_type("gpu-fleet:kubernetes:Manifest").items():
            objects = one.inputs["objects"]
            reason = objects.get("not rendered") or ("" if objects else "it renders no object")
            print(f"{stack}: {name}: {reason or f'{len(objects)} objects'}")
            failed |= bool(reason)
        if picture.error:
            print(f"{stack}: {picture.error}")
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
