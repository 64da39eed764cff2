"""A systemctl for tests: keeps the state of units in $FAKE_SYSTEMD/state.json and writes every call to $FAKE_SYSTEMD/calls.

A unit fails to start when its file says `ExecStart=/bin/false`, and `/bin/false N` ends with N. With `/bin/loops` it has been
restarted once more whenever somebody looks. The tests of issue 4's real hosts hold the same against systemd.
"""

from __future__ import annotations

import json
import os
import re
import sys
import uuid
from pathlib import Path

HOME = Path(os.environ["FAKE_SYSTEMD"])
UNITS = HOME / "units"


def fresh() -> dict:
    return {"loaded": None, "enabled": False, "active": "inactive", "masked": False, "run": "", "restarts": 0}


def main(arguments: list[str]) -> int:
    with (HOME / "calls").open("a") as calls:
        calls.write(" ".join(arguments) + "\n")
    store = HOME / "state.json"
    state: dict[str, dict] = json.loads(store.read_text()) if store.exists() else {}
    verb, *rest = [argument for argument in arguments if argument not in ("--quiet", "--runtime", "--now", "--no-reload", "--")]
    now = "--now" in arguments
    code = 0
    if verb == "daemon-reload":
        for unit in {*state, *(path.name for path in UNITS.glob("gpu-fleet-*.*") if path.is_file())}:
            file = UNITS / unit
            state.setdefault(unit, fresh())["loaded"] = file.read_text() if file.is_file() else None
    elif verb == "show" and "ExecMainStatus" in arguments:
        print(exit_status(state.get(rest[-1], fresh())))
    elif verb == "show":
        if state.get(rest[-1], fresh())["active"] == "activating":
            state[rest[-1]]["restarts"] += 1
        show(rest[-1], state.get(rest[-1], fresh()))
    else:
        unit = state.setdefault(rest[-1], fresh())
        if verb == "is-enabled":
            print("masked" if unit["masked"] else "enabled" if unit["enabled"] else "disabled")
        elif verb == "unmask":
            unit["masked"] = False
        elif verb == "reset-failed":
            unit["active"] = "inactive" if unit["active"] == "failed" else unit["active"]
            unit["restarts"] = 0
        elif unit["loaded"] is None and verb not in ("disable", "stop"):
            sys.stderr.write(f"Unit {rest[-1]} could not be found.\n")
            code = 5
        elif verb == "enable":
            unit["enabled"] = True
        elif verb in ("start", "restart", "reload-or-restart"):
            if verb != "start" or unit["active"] != "active":
                works = "ExecStart=/bin/false" not in unit["loaded"]
                unit["active"] = "activating" if "ExecStart=/bin/loops" in unit["loaded"] else "active" if works else "failed"
                unit["run"] = uuid.uuid4().hex
        elif verb in ("stop", "disable"):
            unit["enabled"] = unit["enabled"] and verb == "stop"
            if verb == "stop" or now:
                unit["active"] = "inactive"
    store.write_text(json.dumps(state))
    return code


def show(name: str, unit: dict) -> None:
    file = UNITS / name
    load = "masked" if unit["masked"] else "not-found" if unit["loaded"] is None else "loaded"
    print(f"LoadState={load}")
    print(f"UnitFileState={'masked' if unit['masked'] else 'enabled' if unit['enabled'] else 'disabled'}")
    print(f"ActiveState={unit['active']}")
    print(f"SubState={ {'active': 'running', 'inactive': 'dead'}.get(unit['active'], unit['active']) }")
    stale = unit["loaded"] is not None and (not file.is_file() or file.read_text() != unit["loaded"])
    print(f"NeedDaemonReload={'yes' if stale else 'no'}")
    print(f"InvocationID={unit['run']}")
    print(f"NRestarts={unit['restarts']}")


def exit_status(unit: dict) -> str:
    [status] = re.findall(r"^ExecStart=/bin/false ?(\d*)$", unit["loaded"], re.MULTILINE) or ["0"]
    return status or "1"


sys.exit(main(sys.argv[1:]))
