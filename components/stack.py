"""The stack that is being deployed, as Pulumi knows it: its configuration, read by gpu_fleet/stackfile/, and its secrets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pulumi
from pulumi.runtime import get_config_env, get_root_directory, is_config_secret

from gpu_fleet.stackfile.config import ConfigErrors, StackConfig, given_otherwise
from gpu_fleet.stackfile.naming import PROJECT


@dataclass(frozen=True)
class LoadedConfig:
    """A stack's configuration and its secrets, by key; a secret stays an Output from here on."""

    config: StackConfig
    secrets: Mapping[str, pulumi.Output[str]]


def read_stack() -> LoadedConfig:
    """Reads the configuration of the stack that is being deployed; the only place that gets it from Pulumi.

    Errors end the program without a traceback (`pulumi.RunError`). Warnings are written to Pulumi's log.
    """
    ours = pulumi.Config(PROJECT)
    prefix = f"{PROJECT}:"
    # The keys that are set are listed only in the environment that the language host passes to the program.
    keys = sorted(key.removeprefix(prefix) for key in get_config_env() if key.startswith(prefix))
    secrets_set = {key for key in keys if is_config_secret(ours.full_key(key))}
    raw = {key: _parsed(ours.get(key)) for key in keys if key not in secrets_set}
    try:
        config = StackConfig.load(raw, Path(get_root_directory()), secrets_set | given_otherwise(raw))
    except ConfigErrors as errors:
        raise pulumi.RunError(str(errors)) from None
    for warning in config.warnings:
        pulumi.log.warn(warning)
    return LoadedConfig(config, {key: ours.require_secret(key) for key in secrets_set})


def _parsed(text: str | None) -> object:
    """Pulumi returns mappings and lists as JSON, and everything else as text."""
    if text is None or not text.startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
