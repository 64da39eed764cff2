"""The Pulumi program of engine.py's project: one host. It imports nothing else of components/, which would take longer than the
host takes to change."""

from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path

import pulumi

from components.fleet.resources import Bundle, Host

signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # as the real program does

desired = json.loads(Path(os.environ["POWERCUT_DESIRED"]).read_text())
ssh, secrets = (json.dumps(desired[name]) for name in ("ssh", "secrets"))
values = {"ssh": ssh, "secrets": pulumi.Output.secret(secrets), "artifactDirectory": desired["artifacts"]}
ours = pulumi.ResourceOptions(provider=pulumi.ProviderResource("gpu-fleet", "fleet", values))
bundle = Bundle("bundle", files=desired["texts"], tar=base64.b64decode(desired["tar"]), opts=ours)
name = desired["settings"]["GPU_FLEET_INSTANCE"]
connection = {"kind": "ssh", "address": "127.0.0.1"}
Host(name, host=name, connection=connection, bundle=bundle.digest, settings=desired["settings"], opts=ours)
