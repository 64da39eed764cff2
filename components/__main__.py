"""The plugin of the package, as Pulumi's language host starts it (PulumiPlugin.yaml): it serves the components of
components/package, and the resources that they consist of."""
# ruff: noqa: E402

import os
import sys
from pathlib import Path

# Python begins its search in this directory, where provider.py would hide the room of that name.
sys.path[0] = str(Path(__file__).resolve().parents[1])
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else grpc complains on every local process that it cannot follow the fork

from components.package.construct import Package
from gpu_fleet.provider.schema import schema
from gpu_fleet.provider.server import main

main(Package(schema()))
