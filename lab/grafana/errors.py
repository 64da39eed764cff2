"""Refusals of the API, in Grafana's form: a status and a body with a message."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """`extra`: what else the body holds, such as Grafana's `status` of a dashboard that cannot be saved."""

    def __init__(self, status: int, message: str, /, **extra: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"message": message, **extra}
