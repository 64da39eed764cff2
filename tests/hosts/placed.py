"""A host of the lab brought to the real bundle by the converge program alone, for what needs many runs and no Pulumi."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_fleet.host.artifacts import program_sources
from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.part import Part
from gpu_fleet.host.parts import PROGRAMS, HostOptions, standard_parts
from gpu_fleet.toolchain.upstream import extract
from lab.hosts import Host

ENVELOPE = "/root/envelope"
ARTIFACTS = "/root/artifacts"
CONVERGE = "sh /var/lib/gpu-fleet/current/converge"
SECRETS = {"metrics-password": "planted-metrics-secret", "logs-password": "planted-logs-secret"}


@dataclass
class Run:
    code: int
    events: list[dict]

    @property
    def errors(self) -> dict[str, str]:
        return {event["part"]: event["error"]["message"] for event in self.events if "error" in event}

    @property
    def drift(self) -> list[str]:
        return [line for event in self.events if event["event"] == "part" for line in event.get("drift", ())]

    @property
    def changes(self) -> dict[str, list[str]]:
        return {event["part"]: event["changes"] for event in self.events if event.get("changes")}

    @property
    def facts(self) -> dict[str, str]:
        return next(event["facts"] for event in self.events if event["event"] == "facts")


@dataclass
class PlacedHost:
    """`artifacts`: directory of the programs on this machine. `settings` and `options` come over those of a usual host."""

    host: Host
    artifacts: Path
    settings: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=lambda: dict(SECRETS), repr=False)

    def parts(self) -> list[Part]:
        programs = program_sources("controller", PROGRAMS, url=None, directory=self.artifacts)
        return standard_parts(HostOptions(programs=programs, metrics_login=True, logs_login=True, **self.options))

    def bundle(self, parts: Sequence[Part]) -> Bundle:
        return Bundle.of(parts)

    def plan(self) -> Run:
        return self.run(f"sh {ENVELOPE}/bundle/converge", "plan", f"--envelope {ENVELOPE}")

    def apply(self, parts: Sequence[Part] | None = None) -> Run:
        return self.run(f"sh {ENVELOPE}/bundle/converge", "apply", f"--envelope {ENVELOPE} --artifacts {ARTIFACTS}", parts)

    def check(self) -> Run:
        return self.run(CONVERGE, "check")

    def remove(self) -> Run:
        return self.run(CONVERGE, "remove")

    def run(self, converge: str, verb: str, arguments: str = "", parts: Sequence[Part] | None = None) -> Run:
        if verb in ("plan", "apply"):
            self._bring(self.bundle(parts or self.parts()), {**self._usual_settings(), **self.settings})
        done = self.host.ssh(f"{converge} {verb} --prefix '' {arguments}", check=False, timeout_s=600)
        return Run(done.returncode, [json.loads(line) for line in done.stdout.splitlines()])

    def leave(self) -> None:
        """The host as it was; for the end of a test, however it went."""
        self.host.ssh(f"{CONVERGE} remove --prefix '' 2>&1; rm -rf {ENVELOPE} {ARTIFACTS}", check=False)

    def _bring(self, bundle: Bundle, settings: Mapping[str, str]) -> None:
        envelope = self.host.inside / ENVELOPE.lstrip("/")
        shutil.rmtree(envelope, ignore_errors=True)
        (envelope / "secrets").mkdir(parents=True)
        (envelope / "bundle.tar").write_bytes(bundle.tar)
        with tarfile.open(fileobj=io.BytesIO(bundle.tar)) as tar:
            extract(tar, envelope / "bundle")
        (envelope / "settings").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        for name, value in self.secrets.items():
            (envelope / "secrets" / name).write_text(value)
        self.bring_artifacts()

    def bring_artifacts(self) -> None:
        artifacts = self.host.inside / ARTIFACTS.lstrip("/")
        if not artifacts.exists():
            artifacts.mkdir()
            programs = [file for file in self.artifacts.iterdir() if file.suffix != ".gz"]
            # Not shutil: it would copy half a gigabyte through Python.
            subprocess.run(["cp", "--sparse=always", "--target-directory", artifacts, *programs], check=True)

    def _usual_settings(self) -> dict[str, str]:
        return {
            "GPU_FLEET_STACK": "lab-west/training",
            "GPU_FLEET_INSTANCE": self.host.name,
            "GPU_FLEET_DATACENTER": "lab-west",
            "GPU_FLEET_CLUSTER": "training",
            "GPU_FLEET_EXPORTER": "nvidia_gpu_exporter",
            "GPU_FLEET_METRICS_URL": "http://127.0.0.1:9/api/v1/push",
            "GPU_FLEET_METRICS_USERNAME": "writer",
            "GPU_FLEET_LOGS_URL": "http://127.0.0.1:9/loki/api/v1/push",
            "GPU_FLEET_LOGS_USERNAME": "writer",
        }
