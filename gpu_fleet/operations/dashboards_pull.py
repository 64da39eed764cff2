"""`make dashboards-pull`: what was edited by hand in Grafana, in words, and which line of code builds it. Run it before an `up`.

    GRAFANA_AUTH=… python -m gpu_fleet.operations.dashboards_pull --stack observability --uid gpu-fleet-host --to build/pulled

Without a uid every dashboard is compared. Nothing is changed, neither in Grafana nor in the code: a dashboard that differs is
saved as Grafana has it, beside a diff, for somebody to port the edits worth keeping.
GRAFANA_AUTH is a service account token or user:password, as for Grafana's provider; GRAFANA_URL overrides the stack's url.
"""

from __future__ import annotations

import argparse
import base64
import difflib
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import dashboards
from components.custom import dashboards_below, newest_price
from dashboards.changes import Change, changes
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import Configuration, configuration, enter_project, project
from gpu_fleet.stackfile.prices import Prices

_HERE = Path(dashboards.__file__).parent
_WITHIN_S = 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="dashboards-pull", description="Hand edits in Grafana, in words")
    parser.add_argument("--stack", required=True, help="the stack that owns Grafana")
    parser.add_argument("--uid", default="", help="of one dashboard; default: all")
    parser.add_argument("--to", required=True, type=Path, metavar="DIR", help="where dashboards that differ are saved")
    arguments = parser.parse_args()
    try:
        enter_project()
        found = configuration(arguments.stack)
        url, price = _grafana_of(found)
        built = dashboards.all_dashboards(price, custom=dashboards_below(found.values.get("custom"), project()))
        if arguments.uid and arguments.uid not in built:
            raise OperationError(f"no dashboard of the code has the uid {arguments.uid!r}: UID is one of {', '.join(built)}")
        edited = [uid for uid in ([arguments.uid] if arguments.uid else built) if _compare(uid, built[uid], url, arguments.to)]
    except OperationError as error:
        print(f"dashboards-pull: {error}", file=sys.stderr)
        return 1
    if not edited:
        print("no dashboard was edited by hand")
    return 0


def _grafana_of(found: Configuration) -> tuple[str, dashboards.Price | None]:
    """Grafana's URL, and the price per GPU hour in its dashboards."""
    section = found.values.get("grafana")
    if not isinstance(section, dict) or "url" not in section:
        raise OperationError(f"{found.file.name} has no gpu-fleet:grafana.url: set STACK to the stack that owns Grafana")
    cost = section.get("costPerGpuHour")
    url = os.environ.get("GRAFANA_URL") or section["url"]
    try:
        return url.rstrip("/"), newest_price(Prices.read(cost), section.get("currency", "USD")) if cost else None
    except ValidationError as error:
        raise OperationError(f"{found.file.name}: gpu-fleet:grafana.costPerGpuHour is not a price: run make preview") from error


def _compare(uid: str, built: dict[str, Any], url: str, directory: Path) -> bool:
    """Prints and saves what differs; returns whether anything does."""
    found = _fetch(url, uid)
    said = changes(built, found)
    if not said:
        return False
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"{uid}.json"
    file.write_text(_text(found))
    lines = difflib.unified_diff(_text(built).splitlines(), _text(found).splitlines(), "code", "Grafana", lineterm="")
    file.with_suffix(".diff").write_text("\n".join(lines) + "\n")
    print(f"{found['title']} ({uid})")
    for change in said:
        print(f"  {change}")
        for place in _places(change):
            print(f"      {place}")
    print(f"  saved: {file}, {file.with_suffix('.diff')}")
    return True


def _text(model: dict[str, Any]) -> str:
    return json.dumps(model, indent=2, sort_keys=True) + "\n"


def _places(change: Change) -> Iterator[str]:
    """Lines of the builders that contain the panel's title."""
    title = change.what.partition('"')[2].rpartition('"')[0]
    for file in sorted(_HERE.glob("*.py")) if title else ():
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            if f'"{title}"' in line:
                yield f"{file.relative_to(_HERE.parent)}:{number}"


def _fetch(url: str, uid: str) -> dict[str, Any]:
    login = os.environ.get("GRAFANA_AUTH", "")
    if not login:
        raise OperationError("GRAFANA_AUTH is not set: expected a service account token of Grafana, or user:password")
    header = f"Basic {base64.b64encode(login.encode()).decode()}" if ":" in login else f"Bearer {login}"
    address = f"{url}/api/dashboards/uid/{uid}"
    request = urllib.request.Request(address, headers={"Authorization": header})  # noqa: S310 - the URL of the stack file
    try:
        with urllib.request.urlopen(request, timeout=_WITHIN_S) as answer:  # noqa: S310
            dashboard: dict[str, Any] = json.load(answer)["dashboard"]
            return dashboard
    except urllib.error.HTTPError as error:
        if error.code == 404:
            raise OperationError(f"{url} has no dashboard {uid}: it was deleted or not deployed yet; `up` creates it") from None
        raise OperationError(f"{url} answered {error.code} {error.reason} for {uid}: check GRAFANA_AUTH") from None
    except (OSError, ValueError, KeyError) as error:
        raise OperationError(f"{url} cannot be read: {getattr(error, 'reason', error)}") from None


if __name__ == "__main__":
    run(lambda arguments: main())
