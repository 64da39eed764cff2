"""What is applied to the machines: two versions of a bundle with everything that a bundle can hold, small enough for hundreds of
runs; and the files that the administrator had there before."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import subprocess
import tarfile
import time
from pathlib import Path

from gpu_fleet.host.bundle import Bundle
from gpu_fleet.host.part import ROOTFS, Directory, Download, File, Part, Source, Unit, User, secret_group
from gpu_fleet.host.parts.pull import Pull
from gpu_fleet.host.pull.publish import Publication, SigningKey
from gpu_fleet.provider.envelope import Archive, Envelope, gzipped
from gpu_fleet.toolchain.upstream import extract

STACK, INSTANCE = "lab-west/training", "cut-001"
PASSWORDS = {1: "of-the-first-version", 2: "of-the-second-version"}
_SETTINGS = {
    "GPU_FLEET_SERVICE_MANAGER": "supervisor",
    "GPU_FLEET_DATACENTER": "lab-west",
    "GPU_FLEET_CLUSTER": "training",
    "GPU_FLEET_METRICS_URL": "http://127.0.0.1:9/push",
    "GPU_FLEET_METRICS_USERNAME": "writer",
}
# Of the administrator, and in the way of ours: one where a file of ours will be, one in a directory that will be ours alone.
OTHERS = {
    "/etc/fleet-app/config": "the administrator's configuration\n" * 400,
    "/etc/fleet-app/theirs": "the administrator's notes\n" * 400,
    "/etc/fleet-other/untouched": "not in the way\n" * 400,
}
_UNITS = {
    "etc/gpu-fleet/supervisor.d/gpu-fleet-agent.conf": (
        "[program:gpu-fleet-agent]\ncommand = /opt/gpu-fleet/bin/agent\nstartsecs = 0\nuser = gpu-fleet-agent\n"
    ),
    "etc/systemd/system/gpu-fleet-agent.service": "[Service]\nExecStart=/opt/gpu-fleet/bin/agent\n",
    "etc/gpu-fleet/supervisor.d/gpu-fleet-retired.conf": (
        "[program:gpu-fleet-retired]\ncommand = /bin/sleep infinity\nstartsecs = 0\nuser = gpu-fleet-retired\n"
    ),
    "etc/systemd/system/gpu-fleet-retired.service": "[Service]\nExecStart=/bin/sleep infinity\n",
}
# A part of the first version alone, as after it was switched off in the stack's configuration.
_RETIRED = Part(
    name="retired",
    users=(User(name="gpu-fleet-retired"),),
    directories=(
        Directory(path="/etc/fleet-retired", contents="placed"),
        Directory(path="/var/lib/gpu-fleet/retired", owner="gpu-fleet-retired", group="gpu-fleet-retired", contents="runtime"),
    ),
    files=(File(path="/etc/fleet-retired/config", content=b"of a part that the second version lacks\n" * 300),),
    units=(Unit(name="gpu-fleet-retired", restart_on=("/etc/fleet-retired/config",)),),
)


def _program(version: int) -> bytes:
    return f"#!/bin/sh\nexec sleep infinity # version {version}\n".encode() + b"# padding\n" * 40_000


def _parts(version: int) -> list[Part]:
    sha256 = hashlib.sha256(_program(version)).hexdigest()
    only = {1: "only-in-the-first", 2: "only-in-the-second"}[version]
    texts = {"config": f"ours {version}\n" * 300, "same": "the same in both\n" * 300, only: "leaves or comes\n" * 300}
    return [
        Part(
            name="app",
            directories=(Directory(path="/etc/fleet-app", contents="placed"),),
            files=tuple(File(path=f"/etc/fleet-app/{name}", content=text.encode()) for name, text in texts.items()),
            settings={"APP_VERSION": str(version)},
        ),
        Part(
            name="agent",
            users=(User(name="gpu-fleet-agent", groups=("gpu-fleet", secret_group("metrics-password"))),),
            directories=(
                Directory(
                    path="/var/lib/gpu-fleet/agent",
                    mode=0o750,
                    owner="gpu-fleet-agent",
                    group="gpu-fleet-agent",
                    contents="runtime",
                ),
            ),
            downloads=(
                Download(path="/opt/gpu-fleet/bin/agent", sources={arch: Source(sha256=sha256) for arch in ("amd64", "arm64")}),
            ),
            secrets=("metrics-password",),
            units=(Unit(name="gpu-fleet-agent", restart_on=("settings", "/opt/gpu-fleet/bin/agent")),),
        ),
        Pull().part(),
        *([_RETIRED] if version == 1 else []),
    ]


def prepare(shared: Path, bootstrap: bytes) -> None:
    """What the machines find in /srv:

    envelope-N/      as the provider unpacks it on a host, for version N
    archive-N        the same, as it travels
    publication-N/   for gpu-fleet-pull, each with the earlier ones' key
    sshd_config      with its keys, and the key of the provider's login
    desired-N        the same version, for program.py
    """
    rootfs = shared / "rootfs"
    for source in ROOTFS.rglob("gpu-fleet-pull*"):
        target = rootfs / source.relative_to(ROOTFS)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(source.read_bytes())
    for path, text in _UNITS.items():
        (rootfs / path).parent.mkdir(parents=True, exist_ok=True)
        (rootfs / path).write_text(text)
    (shared / "bootstrap.sh").write_bytes(bootstrap)
    (shared / "publication").mkdir()
    (shared / "password").write_text(PASSWORDS[1])
    _prepare_login(shared)
    key = shared / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", key], check=True)
    programs = shared / "programs"
    programs.mkdir()
    for version in (1, 2):
        program = _program(version)
        (programs / hashlib.sha256(program).hexdigest()).write_bytes(program)
    for version in (1, 2):
        bundle = Bundle.of(_parts(version), rootfs=rootfs)
        envelope = Envelope(
            bundle=bundle.tar,
            settings={**_SETTINGS, "GPU_FLEET_STACK": STACK, "GPU_FLEET_INSTANCE": INSTANCE},
            secrets={"metrics-password": PASSWORDS[version]},
        )
        program = _program(version)
        members = {**envelope.members(), f"artifacts/{hashlib.sha256(program).hexdigest()}.gz": gzipped(program)}
        directory = shared / f"envelope-{version}"
        for name, content in members.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content)
        with tarfile.open(fileobj=io.BytesIO(bundle.tar)) as tar:
            extract(tar, directory / "bundle")
        (directory / "bundle.tar").write_bytes(bundle.tar)  # as the bootstrap leaves it
        (shared / f"digest-{version}").write_text(bundle.digest)
        (shared / f"archive-{version}").write_bytes(b"".join(Archive(members).chunks()))
        desired = {
            "ssh": {"user": "ops", "privateKeyFile": str(shared / "login"), "knownHostsFile": str(shared / "known_hosts")},
            "secrets": envelope.secrets,
            "artifacts": str(programs),
            "texts": bundle.texts,
            "tar": base64.b64encode(bundle.tar).decode(),
            "settings": envelope.settings,
        }
        (shared / f"desired-{version}").write_text(json.dumps(desired))
        publication = Publication(stack="lab-west-training", bundle=bundle, settings=_SETTINGS, artifacts=programs)
        publication.write(shared / f"publication-{version}", [SigningKey(key)], now_s=int(time.time()) - 1000 + version)


def _prepare_login(shared: Path) -> None:
    for name in ("login", "sshd_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", shared / name], check=True)
    (shared / "known_hosts").write_text("127.0.0.1 " + (shared / "sshd_key.pub").read_text())
    (shared / "sshd_config").write_text(
        "ListenAddress 127.0.0.1\nHostKey /srv/sshd_key\nAuthorizedKeysFile /srv/login.pub\nUsePAM yes\nUseDNS no\n"
    )
