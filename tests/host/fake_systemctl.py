"""A systemctl for tests: keeps the state of units in $GPU_FLEET_FAKE_SYSTEMD/state and writes every call to calls beside it.

A unit fails to start when its file says `ExecStart=/bin/false`, and `/bin/false N` ends with N. With `/bin/loops` it has been
restarted once more whenever somebody looks. The tests of issue 4's real hosts hold the same against systemd.

As systemd does (245 to 259, measured 2026-11-28), it reads the file of a unit that it does not know when that is started, and of
one that it knows only in a daemon-reload; it knows an enabled unit from the first reload on, also when it does not run; and
UnitFileState is what it was when somebody first asked.
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
    unit = {"loaded": None, "enabled": False, "active": "inactive", "masked": False, "run": "", "restarts": 0}
    return {**unit, "pinned": False, "mask known": False, "said": ""}


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
    verb, *rest = [argument for argument in arguments if argument not in ("--quiet", "--runtime", "--root=/", "--")]
    code = 0
    if verb == "daemon-reload":
        for unit in {*state, *(name for name in os.listdir(UNITS) if name.startswith("gpu-fleet-") and "." in name)}:
            text = on_disk(unit)
            if text is not None or unit in state:
                known = state.setdefault(unit, fresh())
                known["loaded"], known["pinned"], known["mask known"], known["said"] = text, known["enabled"], known["masked"], ""
                known.pop("drop-in", None)
    elif verb == "show" and "--value" in rest:
        print(state.get(rest[-1], fresh()).get("dropins", ""))
    elif verb == "show":
        if state.get(rest[-1], fresh())["active"] == "activating":
            state[rest[-1]]["restarts"] += 1
        if rest[-1] in state:
            state[rest[-1]]["said"] = state[rest[-1]]["said"] if state[rest[-1]]["loaded"] is not None else ""
            state[rest[-1]]["said"] = state[rest[-1]]["said"] or unit_file_state(state[rest[-1]])
        show(rest[-1], state.get(rest[-1], fresh()))
    else:
        unit = state.setdefault(rest[-1], fresh())
        if unit["loaded"] is None and verb in ("start", "restart"):
            unit["loaded"] = on_disk(rest[-1])
        if verb == "is-enabled":
            print(unit_file_state(unit))
        elif verb == "unmask":
            unit["masked"] = False
        elif verb == "reset-failed":
            unit["active"] = "inactive" if unit["active"] == "failed" else unit["active"]
            unit["restarts"] = 0
        elif verb == "enable" and on_disk(rest[-1]) is not None:
            unit["enabled"] = True
        elif unit["loaded"] is None and verb not in ("disable", "stop", "try-restart"):
            sys.stderr.write(f"Unit {rest[-1]} could not be found.\n")
            code = 5
        elif verb in ("start", "restart", "reload-or-restart"):
            if verb != "start" or unit["active"] != "active":
                works = "ExecStart=/bin/false" not in unit["loaded"]
                unit["active"] = "activating" if "ExecStart=/bin/loops" in unit["loaded"] else "active" if works else "failed"
                unit["run"] = os.urandom(16).hex()
        elif verb == "disable":
            unit["enabled"] = False
        elif verb == "stop":
            unit["active"] = "inactive"
            unit["loaded"] = unit["loaded"] if unit["pinned"] else None
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
    is_there = unit["loaded"] is not None or on_disk(name) is not None
    print(f"LoadState={'masked' if unit['mask known'] else 'loaded' if is_there else 'not-found'}")
    print(f"UnitFileState={unit['said'] or unit_file_state(unit)}")
    print(f"ActiveState={unit['active']}")
    print(f"SubState={ {'active': 'running', 'inactive': 'dead'}.get(unit['active'], unit['active']) }")
    is_gone = "drop-in" in unit and not os.path.exists(unit["drop-in"])
    stale = unit["loaded"] is not None and (on_disk(name) != unit["loaded"] or is_gone)
    print(f"NeedDaemonReload={'yes' if stale or os.path.exists(f'{HOME}/all-changed') else 'no'}")
    print(f"InvocationID={unit['run']}")
    print(f"NRestarts={unit['restarts']}")
    print(f"DropInPaths={unit.get('dropins', '')}")
    print(f"ExecMainStatus={exit_status(unit)}")


def exit_status(unit: dict) -> str:
    for line in (unit["loaded"] or "").splitlines():
        if line.startswith("ExecStart=/bin/false"):
            return line.removeprefix("ExecStart=/bin/false").strip() or "1"
    return "0"


sys.exit(main(sys.argv[1:]))
