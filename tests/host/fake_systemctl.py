"""A systemctl for tests: keeps the state of units in $GPU_FLEET_FAKE_SYSTEMD/state and writes every call to calls beside it.

A unit fails to start when its file says `ExecStart=/bin/false`, and `/bin/false N` ends with N. With `/bin/loops` it has been
restarted once more whenever somebody looks. The tests of issue 4's real hosts hold the same against systemd.
"""

# ruff: noqa: PTH110, PTH113, PTH123, PTH208

from __future__ import annotations

import json
import os
import sys

HOME = os.environ["GPU_FLEET_FAKE_SYSTEMD"]
UNITS = f"{HOME}/units"
STATE = f"{HOME}/state"


def fresh() -> dict:
    return {"loaded": None, "enabled": False, "active": "inactive", "masked": False, "run": "", "restarts": 0}


def main(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(f"systemd {os.environ.get('GPU_FLEET_FAKE_SYSTEMD_VERSION', '252')} (252.22-1)")
        return 0
    with open(f"{HOME}/calls", "a") as calls:
        calls.write(" ".join(arguments) + "\n")
    state: dict[str, dict] = {}
    if os.path.exists(STATE):
        with open(STATE) as store:
            state = json.load(store)
    verb, *rest = [argument for argument in arguments if argument not in ("--quiet", "--runtime", "--now", "--no-reload", "--")]
    now = "--now" in arguments
    code = 0
    if verb == "daemon-reload":
        for unit in {*state, *(name for name in os.listdir(UNITS) if name.startswith("gpu-fleet-") and "." in name)}:
            text = on_disk(unit)
            if text is not None or unit in state:
                state.setdefault(unit, fresh())["loaded"] = text
    elif verb == "show" and "ExecMainStatus" in arguments:
        print(exit_status(state.get(rest[-1], fresh())))
    elif verb == "show" and "--value" in rest:
        print(state.get(rest[-1], fresh()).get("dropins", ""))
    elif verb == "show":
        if state.get(rest[-1], fresh())["active"] == "activating":
            state[rest[-1]]["restarts"] += 1
        show(rest[-1], state.get(rest[-1], fresh()))
    else:
        unit = state.setdefault(rest[-1], fresh())
        if verb == "is-enabled":
            print(unit_file_state(unit))
        elif verb == "unmask":
            unit["masked"] = False
        elif verb == "reset-failed":
            unit["active"] = "inactive" if unit["active"] == "failed" else unit["active"]
            unit["restarts"] = 0
        elif verb == "enable" and on_disk(rest[-1]) is not None:
            unit["enabled"] = True
        elif unit["loaded"] is None and verb not in ("disable", "stop"):
            sys.stderr.write(f"Unit {rest[-1]} could not be found.\n")
            code = 5
        elif verb in ("start", "restart", "reload-or-restart"):
            if verb != "start" or unit["active"] != "active":
                works = "ExecStart=/bin/false" not in unit["loaded"]
                unit["active"] = "activating" if "ExecStart=/bin/loops" in unit["loaded"] else "active" if works else "failed"
                unit["run"] = os.urandom(16).hex()
        elif verb in ("stop", "disable"):
            unit["enabled"] = unit["enabled"] and verb == "stop"
            if verb == "stop" or now:
                unit["active"] = "inactive"
    with open(STATE, "w") as store:
        json.dump(state, store)
    return code


def on_disk(unit: str) -> str | None:
    """What its file says now; None without one."""
    if not os.path.isfile(f"{UNITS}/{unit}"):
        return None
    with open(f"{UNITS}/{unit}") as file:
        return file.read()


def unit_file_state(unit: dict) -> str:
    """`enabled`: a boolean, or another word of systemctl's."""
    known = {True: "enabled", False: "disabled"}
    return "masked" if unit["masked"] else known.get(unit["enabled"], unit["enabled"])


def show(name: str, unit: dict) -> None:
    load = "masked" if unit["masked"] else "not-found" if unit["loaded"] is None else "loaded"
    print(f"LoadState={load}")
    print(f"UnitFileState={unit_file_state(unit)}")
    print(f"ActiveState={unit['active']}")
    print(f"SubState={ {'active': 'running', 'inactive': 'dead'}.get(unit['active'], unit['active']) }")
    stale = unit["loaded"] is not None and on_disk(name) != unit["loaded"]
    print(f"NeedDaemonReload={'yes' if stale else 'no'}")
    print(f"InvocationID={unit['run']}")
    print(f"NRestarts={unit['restarts']}")
    print(f"DropInPaths={unit.get('dropins', '')}")


def exit_status(unit: dict) -> str:
    for line in unit["loaded"].splitlines():
        if line.startswith("ExecStart=/bin/false"):
            return line.removeprefix("ExecStart=/bin/false").strip() or "1"
    return "0"


sys.exit(main(sys.argv[1:]))
