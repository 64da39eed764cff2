"""`make pull-bundle`: writes what the hosts of a stack with pull mode fetch into a directory. Reads no secret."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path
from typing import Any

from components.fleet.bundle import bundle
from gpu_fleet.host.artifacts import ArtifactsError
from gpu_fleet.host.pull.publish import ALL, CLOCKS_DIFFER_S, Publication, PublishError, Schedule, SigningKey, Written
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import configuration, enter_project
from gpu_fleet.stackfile.artifacts import permit_artifacts
from gpu_fleet.stackfile.config import ConfigErrors, StackConfig
from gpu_fleet.stackfile.settings import shared_settings
from gpu_fleet.stackfile.stand_ins import StandInsRefused


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gpu_fleet.operations.pull_bundle", description="Publish a stack for pull mode."
    )
    parser.add_argument("--stack", required=True)
    parser.add_argument(
        "--key",
        type=Path,
        action="append",
        required=True,
        help="SSH key that signs, or the .pub file of a key in the ssh-agent; several: each signs, and hosts trust all of them",
    )
    parser.add_argument("--to", type=Path, required=True, help="directory to write")
    parser.add_argument("--url", default="", help="where hosts find it; default: gpu-fleet:pull, else beside the installer")
    parser.add_argument("--now", action="store_true", help="without waves: every host takes it at its next run")
    parser.add_argument("--stop", action="store_true", help="hosts that have not taken this bundle yet keep the one they have")
    given = parser.parse_args(arguments)
    try:
        enter_project()
        publication = read_publication(given.stack, given.url, is_at_once=given.now, is_stopped=given.stop)
        written = publication.write(given.to, [SigningKey(key.expanduser()) for key in given.key], now_s=int(time.time()))
    except (PublishError, OperationError, ConfigErrors, ArtifactsError, StandInsRefused) as error:
        print(error, file=sys.stderr)
        return 1
    if written.behind_s > CLOCKS_DIFFER_S:
        print(
            f"The last publication in {given.to} is {written.behind_s / 60:.0f} min ahead of this machine's clock "
            f"({_at(int(time.time()))}): that of one of the two machines is wrong (timedatectl). Waves begin after that "
            "publication.",
            file=sys.stderr,
        )
    print(f"{given.to}: bundle {publication.bundle.digest}, {len(publication.bundle.artifacts)} programs in it")
    print(_schedule_in_words(publication, written))
    print(f"Copy the directory to where the hosts find it, `latest` last; then, on each host: sh {written.installer.name} --help")
    return 0


def _schedule_in_words(publication: Publication, written: Written) -> str:
    expires = f"The publication expires on {_at(written.expires_s)}: publish again before that."
    if publication.is_stopped:
        return f"The rollout is stopped: hosts that have not taken this bundle yet keep the one they have. {expires}"
    each = f"{written.size / 1e6:,.1f} MB for each host"
    if hosts := publication.schedule.hosts:
        each += f", {written.size * hosts / 1e9:,.1f} GB for {hosts:,} hosts"
    return f"{each}; the last host's turn is on {_at(written.done_s)}. {expires}"


def _at(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def read_publication(stack: str, url: str, *, is_at_once: bool = False, is_stopped: bool = False) -> Publication:
    """Raises PublishError, OperationError, ConfigErrors, StandInsRefused, ArtifactsError when artifacts do not match the file."""
    if url and not re.fullmatch(r"(https?|file)://[^\s@]+", url):
        raise PublishError(f"URL {url}: give https://..., http://... or file:///..., without a login")
    found = configuration(stack)
    config = found.load()
    name = stack.rpartition("/")[2]
    if url.startswith("http://") and not (config.pull and config.pull.insecure):
        raise PublishError(
            f"URL {url}: http:// lets anyone on the path replace what hosts run as root. Give https://, or write "
            f"`insecure: true` below gpu-fleet:pull in {found.file.name}"
        )
    if not url and config.pull:
        url = config.pull.url
    if not config.datacenter or config.metrics is None:
        raise PublishError(f"{found.file.name}: pull mode needs gpu-fleet:datacenter, gpu-fleet:cluster and gpu-fleet:metrics")
    if warning := permit_artifacts(config, name):
        print(warning, file=sys.stderr)
    directory = config.artifacts.directory
    return Publication(
        stack=name,
        bundle=bundle(config),
        settings=shared_settings(config),
        artifacts=config.local_path(directory) if directory else None,
        url=url,
        is_stopped=is_stopped,
        **_pull_options(config, is_at_once),
    )


def _pull_options(config: StackConfig, is_at_once: bool) -> dict[str, Any]:
    section = config.pull
    if section is None:
        return {}
    schedule = Schedule(
        shares=(ALL,) if is_at_once else [round(share * ALL) for share in section.shares],
        pause_s=section.pause_s,
        hosts=section.hosts or sum(host.connection == "pull" for host in config.hosts.values()),
        bytes_per_s=0.0 if is_at_once else section.bytes_per_s,
    )
    spare = " ".join((section.spare_key or "").split()[:2])
    return {"valid_s": section.valid_s, "spare_key": spare, "schedule": schedule}


if __name__ == "__main__":
    run(main)
