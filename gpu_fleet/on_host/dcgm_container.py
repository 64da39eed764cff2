"""Runs dcgm-exporter's container with Docker or Podman (GPU_FLEET_DCGM_RUN).

This process becomes the client's `run`, which forwards signals to the container and ends with it. `stop UNIT` removes what a
killed client left, and where UNIT is disabled, which means that it is being removed, our images too.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple, Sequence

from . import output
from .files import text_of

NO_IMAGE = 13  # the exit status when the image is not available, which an immediate retry would not change
PULL_S = 900  # half a gigabyte over 5 Mbit/s
NAME = "gpu-fleet-dcgm-exporter"
OURS = "gpu-fleet/dcgm-exporter"  # our own name for the image, so that images pulled, tagged or removed by others are left alone
COUNTERS = "/etc/dcgm-exporter/counters.csv"


class NoImage(Exception):
    """Its text is why."""


class Engine(NamedTuple):
    """`client`: its command. `gpus`, `log_driver`: options of `run`."""

    client: Sequence[str]
    gpus: Sequence[str]
    log_driver: str

    def ask(self, *arguments: str) -> tuple[bool, str]:
        """Whether it succeeds, and what it prints."""
        try:
            done = output.run([*self.client, *arguments], PULL_S, errors=subprocess.STDOUT)
        except subprocess.TimeoutExpired:
            return False, f"timed out after {PULL_S} s"
        except output.TooMuch as error:
            return False, str(error)
        except OSError as error:
            return False, f"{self.client[0]}: {error.strerror}"
        return done.returncode == 0, done.stdout.decode("utf-8", "replace")

    def does(self, *arguments: str) -> bool:
        return self.ask(*arguments)[0]

    def has_image(self, image: str) -> bool:
        return self.does("image", "inspect", image)


DOCKER = Engine(client=("docker",), gpus=("--gpus", "all"), log_driver="local")
PODMAN = Engine(
    client=("podman", "--remote", "--url", "unix:///run/podman/podman.sock"),
    gpus=("--device", "nvidia.com/gpu=all"),
    log_driver="k8s-file",
)


def main(arguments: list[str]) -> int:
    prefix = os.environ.get("GPU_FLEET_PREFIX", "")
    unit = arguments[1] if arguments else ""
    # When a unit is being removed, its name determines the engine: the settings already name the host's new choice.
    engine = PODMAN if (unit or os.environ["GPU_FLEET_DCGM_RUN"]).endswith("podman") else DOCKER
    if engine is PODMAN:
        # Podman's service runs as root and this is only a client; without capabilities it would look for a user's service
        # instead. Its own home is hidden from it (ProtectHome), which Podman treats as an error.
        os.environ["HOME"] = "/tmp"  # noqa: S108
    _remove_container(engine)
    if unit:
        if not Path(f"/etc/systemd/system/multi-user.target.wants/{unit}.service").exists():
            _drop_images(engine)
        return 0
    archive = os.environ.get("GPU_FLEET_DCGM_ARCHIVE", "")
    try:
        image = _image(engine, os.environ["GPU_FLEET_DCGM_IMAGE"], f"{prefix}{archive}" if archive else "")
    except NoImage as why:
        print(f"the image {why}", file=sys.stderr)
        return NO_IMAGE
    # It outlives the exec below as a child of the client, which it ends when another driver is loaded.
    watch = f"{prefix}/opt/gpu-fleet/libexec/watch-driver"
    subprocess.Popen([watch, str(os.getpid())], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    command = [*engine.client, "run", *_options(engine, f"{prefix}{COUNTERS}"), image, *_flags()]
    os.execvp(command[0], command)  # noqa: S606


def _remove_container(engine: Engine) -> None:
    """What is left over when the host lost power or the client was killed. A container that is stopping still uses its image."""
    for _ in range(10):
        engine.does("rm", "--force", NAME)
        if not engine.does("container", "inspect", NAME):
            return
        time.sleep(1)


def _drop_images(engine: Engine, but: str = "") -> None:
    """Removes our images, except this one."""
    listed = engine.ask("image", "ls", "--format", "{{.Repository}}:{{.Tag}}", "--filter", f"reference={OURS}")
    for image in listed[1].split() if listed[0] else ():
        if re.sub("^localhost/", "", image) != but:
            engine.does("image", "rm", image)


def _image(engine: Engine, reference: str, archive: str) -> str:
    """The image to run, which is loaded or pulled if it is missing. Raises NoImage."""
    # The first characters of its digest, or of its archive's checksum.
    tag = _sha256(Path(archive)) if archive else reference.rpartition("sha256:")[2]
    image = f"{OURS}:{tag[:12]}"
    if engine.has_image(image):
        _drop_images(engine, but=image)  # the previous one is no longer needed: this one has already run
    elif archive:
        _load(engine, image, archive)
    elif engine.has_image(reference):
        return reference  # pulled by somebody else
    else:
        print(f"pulling {reference}", file=sys.stderr, flush=True)
        has_pulled, said = engine.ask("pull", "--quiet", reference)
        if not has_pulled:
            raise NoImage(f"{reference} is not available: {_last_line(said)}")
        print("pulled the image", file=sys.stderr, flush=True)  # converge waits while the last line begins with "pulling "
        engine.does("tag", reference, image)
        engine.does("image", "rm", reference)
    return image


def _load(engine: Engine, image: str, archive: str) -> None:
    has_loaded, said = engine.ask("load", "--quiet", "--input", archive)
    # "Loaded image: NAME", or "Loaded image ID: sha256:..." of one without a name
    names = re.findall(r"^Loaded image[^:]*: *(\S+)", said, re.MULTILINE)
    if not has_loaded or not names:
        raise NoImage(f"{archive} is not available: {_last_line(said)}")
    engine.does("tag", names[-1], image)
    if not names[-1].startswith("sha256:"):
        engine.does("image", "rm", names[-1])


def _sha256(archive: Path) -> str:
    """Raises NoImage."""
    digest = hashlib.sha256()
    try:
        with archive.open("rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError as error:
        raise NoImage(f"{archive} is not available: {error.strerror}") from None
    return digest.hexdigest()


def _last_line(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def _options(engine: Engine, counters: str) -> Sequence[str]:
    # SYS_ADMIN is only for the profiling counters; all others are read without any capability.
    is_profiling = re.search("^DCGM_FI_PROF_", text_of(Path(counters)), re.MULTILINE)
    rights = ("--cap-add", "SYS_ADMIN") if is_profiling else ("--security-opt", "no-new-privileges")
    return [
        *("--rm", "--name", NAME, *engine.gpus, "--network", "host", "--pull", "never"),
        # Killing the exporter has frozen GPUs (dcgm-exporter issue 84), so it gets a minute to stop.
        *("--stop-timeout", "60"),
        # What the container prints is in this unit's journal. The engine keeps a second copy, by default without any limit:
        # Docker's json-file (docs.docker.com, "Configure logging drivers", read 2026-11-22). The driver is set because another
        # one would reject these options.
        *("--log-driver", engine.log_driver, "--log-opt", "max-size=5m"),
        # A container confined by SELinux may open neither the driver's devices nor a file in /etc; NVIDIA's instructions for
        # Podman disable the label too (Container Toolkit, "Support for Container Device Interface", read 2026-11-21). Without
        # SELinux it has no effect.
        *("--security-opt", "label=disable", "--cap-drop", "ALL", *rights),
        *("--volume", f"{counters}:{COUNTERS}:ro"),
    ]


def _flags() -> Sequence[str]:
    """Of dcgm-exporter, which collects as often as Alloy scrapes."""
    listen = os.environ["GPU_FLEET_GPU_EXPORTER_LISTEN"]
    return ["--collectors", COUNTERS, "--address", listen, "--collect-interval", "15000"]
