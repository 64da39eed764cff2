"""Identifiers and addresses of folders and dashboards."""

from __future__ import annotations

import re
from typing import Any

from lab.grafana.errors import ApiError
from lab.grafana.store import new_uid

LONGEST_UID = 40


def checked_uid(uid: Any) -> str:
    """The given one, or a new one when none is given."""
    if not uid:
        return new_uid()
    if not isinstance(uid, str) or not re.fullmatch(r"[a-zA-Z0-9\-_]+", uid):
        raise ApiError(400, "uid contains illegal characters")
    if len(uid) > LONGEST_UID:
        raise ApiError(400, f"uid too long, max {LONGEST_UID} characters")
    return uid


def slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "-"
