"""The simulated GPUs of a lab host: the machine's state lives outside, its tools lie where a driver puts them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from lab.gpu import setup
from lab.gpu.machine import MACHINE_FILE, STATE_VARIABLE

STATE_INSIDE = "/var/lib/gpu-lab"  # the state directory is mounted there
CODE_INSIDE = "/usr/local/lib/gpu-lab"
_CODE = Path(setup.__file__).parent
# Where the vendors' packages put them; exporters are brought by us, as on a real host.
_TOOLS = {"nvidia": {"nvidia-smi": "/usr/bin"}, "amd": {"rocm-smi": "/opt/rocm/bin", "amd-smi": "/opt/rocm/bin"}}


def place(root: Path, *, state: Path, scenario: str, hostname: str) -> None:
    """A machine of the scenario in `state`, and its vendor's tools in the file system below `root`."""
    setup.init(state=state, scenario=scenario, hostname=hostname)
    vendor = json.loads((state / MACHINE_FILE).read_text())["vendor"]
    code = root / CODE_INSIDE.lstrip("/") / "lab" / "gpu"
    shutil.copytree(_CODE, code, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (state, *state.rglob("*"), *code.parents[1].rglob("*")):
        # The checkout may be readable by its owner alone; the exporters' users on the host read it too.
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    for tool, directory in _TOOLS[vendor].items():
        if not (_CODE / "bin" / tool).exists():
            continue
        file = root / directory.lstrip("/") / tool
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            "#!/bin/sh\n"
            "# A simulated GPU machine (lab/gpu), no real driver.\n"
            f"export {STATE_VARIABLE}={STATE_INSIDE}\n"
            f'exec /usr/bin/python3 -I -S -B {CODE_INSIDE}/lab/gpu/bin/{tool} "$@"\n'
        )
        file.chmod(0o755)
