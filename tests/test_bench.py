"""What the bench leaves behind."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest

from bench.measure import cost_of


def test_an_interrupted_measurement_ends_what_it_started(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    communicate = process.communicate

    def interrupted(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(process, "communicate", communicate)
        raise KeyboardInterrupt

    monkeypatch.setattr(process, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cost_of(process)
    assert process.returncode == -signal.SIGINT, "interrupted before it is killed, as pulumi has hosts to stop"
