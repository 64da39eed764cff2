"""`make pull-bundle`: one stack's publication into a directory. Reads the stack file alone: no Pulumi, no secret."""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from components.fleet.bundle import bundle
from host.artifacts import ArtifactsError
from host.pull.publish import Publication, PublishError, SigningKey
from stackfile.artifacts import permit_artifacts
from stackfile.config import ConfigErrors, StackConfig
from stackfile.settings import shared_settings
from stackfile.stand_ins import StandInsRefused

_ROOT = Path(__file__).parents[1]  # where the stack files are


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m operations.pull_bundle", description="Publish a stack for hosts that pull.")
    parser.add_argument("--stack", required=True)
    parser.add_argument("--key", type=Path, required=True, help="SSH key that signs, or the .pub of one in the ssh-agent")
    parser.add_argument("--to", type=Path, required=True, help="directory to write")
    parser.add_argument("--url", default="", help="where hosts will find it; default: gpu-fleet:pull, else beside the installer")
    given = parser.parse_args(arguments)
    try:
        publication = read_publication(given.stack, given.url)
        installer = publication.write(given.to, SigningKey(given.key.expanduser()), now_s=int(time.time()))
    except (PublishError, ConfigErrors, ArtifactsError, StandInsRefused) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{given.to}: bundle {publication.bundle.digest}, {len(publication.bundle.artifacts)} programs in it")
    print(f"Copy the directory to where the hosts find it, `latest` last; then, on each host: sh {installer.name} --help")
    return 0


def read_publication(stack: str, url: str) -> Publication:
    """Raises PublishError, ConfigErrors, ArtifactsError when the artifacts are not as the stack file says, or StandInsRefused."""
    path = _ROOT / f"Pulumi.{stack}.yaml"
    if not re.fullmatch(r"[A-Za-z0-9._-]+", stack) or not path.is_file():
        known = sorted(file.name.split(".")[1] for file in _ROOT.glob("Pulumi.*.yaml"))
        raise PublishError(f"there is no stack file {path.name}; there are: {', '.join(known)}. `make new-stack` writes one.")
    if url and not re.fullmatch(r"(https?|file)://[^\s@]+", url):
        raise PublishError(f"URL {url}: give https://..., http://... or file:///..., without a login")
    config = StackConfig.from_file(path, _ROOT)
    if not url and config.pull:
        url = config.pull.url
    if not config.datacenter or config.metrics is None:
        raise PublishError(f"{path.name}: hosts that pull need gpu-fleet:datacenter, gpu-fleet:cluster and gpu-fleet:metrics")
    if warning := permit_artifacts(config, stack):
        print(warning, file=sys.stderr)
    directory = config.artifacts.directory
    return Publication(
        stack=stack,
        bundle=bundle(config),
        settings=shared_settings(config),
        artifacts=config.local_path(directory) if directory else None,
        url=url,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
