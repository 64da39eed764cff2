"""Scenarios: YAML files that say which GPUs a simulated machine holds, compiled into the `machine.json` its tools read.

Errors name the file, the key, what was found and what is allowed. Not done here: anything about what the GPUs do (load.py)
or suffer (faults.py).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import yaml

from lab.gpu.load import PATTERNS

HERE = Path(__file__).parent
SCENARIOS = HERE / "scenarios"
FORMAT = 1  # of machine.json; raised when the tools can no longer read an older one

_KEYS = {"vendor", "driver", "cuda", "rocm", "hostname", "gpus", "pci", "nvswitches"}
_GROUP_KEYS = {"product", "count", "load", "mig"}

# Memory and SMs per MIG profile, as `nvidia-smi` lists them for 80 GB GPUs. Source: recorded H100 MIG captures, driver 590.
_MIG_PROFILES = {
    "7g.80gb": {"slices": 7, "memory_mib": 81037, "sms": 132, "bar1_mib": 49478},
    "4g.40gb": {"slices": 4, "memory_mib": 40448, "sms": 64, "bar1_mib": 24739},
    "3g.40gb": {"slices": 3, "memory_mib": 40448, "sms": 60, "bar1_mib": 24739},
    "2g.20gb": {"slices": 2, "memory_mib": 20096, "sms": 32, "bar1_mib": 12369},
    "1g.10gb": {"slices": 1, "memory_mib": 9984, "sms": 16, "bar1_mib": 6184},
}
_GPU_INSTANCES = {"7g": 0, "4g": 1, "3g": 2, "2g": 3, "1g": 9}  # id of the first instance of a size


class ScenarioError(ValueError):
    """The scenario cannot be built; the text says where and why."""


def available() -> list[str]:
    return sorted(path.stem for path in SCENARIOS.glob("*.yaml"))


def compile_scenario(scenario: str, *, hostname: str | None = None) -> dict[str, Any]:
    """`scenario`: a name from scenarios/ or the path of a YAML file. `hostname` makes another machine of the same build:
    other UUIDs, serials and noise."""
    path = SCENARIOS / f"{scenario}.yaml" if scenario in available() else Path(scenario)
    if not path.is_file():
        raise ScenarioError(f"scenario {scenario!r}: neither a file nor one of {', '.join(available())}")
    text = yaml.safe_load(path.read_text(encoding="utf-8"))
    return _Compiler(path, text, hostname).machine()


class _Compiler:
    def __init__(self, path: Path, text: Any, hostname: str | None) -> None:
        self.path = path
        if not isinstance(text, dict):
            raise ScenarioError(f"{path}: a mapping is needed, found {type(text).__name__}")
        self.text = text
        self._known(text, _KEYS, "")
        self.vendor = self._one_of("vendor", text.get("vendor"), ("nvidia", "amd"))
        self.hostname = hostname or text.get("hostname", path.stem)
        self.products = yaml.safe_load((HERE / "products.yaml").read_text(encoding="utf-8"))[self.vendor]
        self.seed = int(hashlib.sha256(f"{path.stem}/{self.hostname}".encode()).hexdigest()[:12], 16)

    def machine(self) -> dict[str, Any]:
        gpus = self._gpus()
        return {
            "format": FORMAT,
            "scenario": self.path.stem,
            "vendor": self.vendor,
            "driver": str(self._need("driver")),
            "cuda": str(self._need("cuda")) if self.vendor == "nvidia" else None,
            "rocm": str(self._need("rocm")) if self.vendor == "amd" else None,
            "hostname": self.hostname,
            "seed": self.seed,
            "gpus": gpus,
            "nvswitches": [self._pci("nvswitches", slot) for slot in self.text.get("nvswitches", [])],
        }

    def _gpus(self) -> list[dict[str, Any]]:
        groups = self._need("gpus")
        wanted = [group for group in groups for _ in range(self._group(group))]
        slots = self._need("pci")
        if len(slots) != len(wanted):
            raise ScenarioError(f"{self.path}: pci: {len(slots)} slots for {len(wanted)} GPUs; name one slot per GPU")
        return [
            self._gpu(index, group, self._pci("pci", slot)) for index, (group, slot) in enumerate(zip(wanted, slots, strict=True))
        ]

    def _group(self, group: dict[str, Any]) -> int:
        self._known(group, _GROUP_KEYS, "gpus[].")
        self._one_of("gpus[].product", group.get("product"), tuple(self.products))
        self._one_of("gpus[].load", group.get("load"), PATTERNS)
        count = group.get("count", 1)
        if not isinstance(count, int) or not 1 <= count <= 16:
            raise ScenarioError(f"{self.path}: gpus[].count: {count!r} is not a number from 1 to 16")
        return count

    def _gpu(self, index: int, group: dict[str, Any], pci: list[int]) -> dict[str, Any]:
        digest = hashlib.sha256(f"{self.seed}/{index}".encode()).hexdigest()
        uuid = f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
        return {
            "index": index,
            "uuid": uuid,
            "serial": str(1650000000000 + int(digest[32:40], 16) % 9999999999),
            "pci": pci,
            "load": group["load"],
            "mig": self._mig(group.get("mig", []), digest),
            "product": self.products[group["product"]],
        }

    def _mig(self, profiles: list[str], digest: str) -> list[dict[str, Any]]:
        used: dict[str, int] = {}
        instances = []
        for device, profile in enumerate(profiles):
            self._one_of("gpus[].mig", profile, tuple(_MIG_PROFILES))
            size = profile.split("g.")[0] + "g"
            gpu_instance = _GPU_INSTANCES[size] + used.get(size, 0)
            used[size] = used.get(size, 0) + 1
            part = hashlib.sha256(f"{digest}/{device}".encode()).hexdigest()
            uuid = f"{part[:8]}-{part[8:12]}-{part[12:16]}-{part[16:20]}-{part[20:32]}"
            instances.append(
                {"device": device, "profile": profile, "gi": gpu_instance, "ci": 0, "uuid": uuid, **_MIG_PROFILES[profile]}
            )
        return instances

    def _pci(self, key: str, slot: str) -> list[int]:
        """`bus:device` in hex, domain 0."""
        try:
            bus, device = (int(part, 16) for part in str(slot).split(":"))
        except ValueError:
            raise ScenarioError(f'{self.path}: {key}: {slot!r} is not a PCI slot such as "5D:00" (keep the quotes)') from None
        return [bus, device]

    def _need(self, key: str) -> Any:
        if key not in self.text:
            raise ScenarioError(f"{self.path}: {key}: missing; see scenarios/h100x8.yaml")
        return self.text[key]

    def _known(self, mapping: dict[str, Any], allowed: set[str], prefix: str) -> None:
        for key in mapping:
            if key not in allowed:
                raise ScenarioError(f"{self.path}: {prefix}{key}: unknown key; expected one of {', '.join(sorted(allowed))}")

    def _one_of(self, key: str, value: Any, allowed: tuple[str, ...]) -> str:
        if value not in allowed:
            raise ScenarioError(f"{self.path}: {key}: {value!r}; expected one of {', '.join(allowed)}")
        return str(value)
