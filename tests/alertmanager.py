"""Mimir's Alertmanager, as tests look at it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request


def has_loaded(mimir: str, text: str) -> bool:
    """Whether `text` is in the configuration that it runs with: it looks for a posted one every few seconds."""
    try:
        with urllib.request.urlopen(f"{mimir}/alertmanager/api/v2/status", timeout=120) as answer:
            return text in json.load(answer)["config"]["original"]
    except urllib.error.HTTPError:
        return False  # it has none yet
