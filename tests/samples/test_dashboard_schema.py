"""Dashboards against Grafana's own published schema of the classic dashboard model (foundation SDK, see SOURCES.md)."""

from __future__ import annotations

import json

import jsonschema
import pytest

import dashboards
from tests.samples.conftest import SAMPLES

BOARDS = dashboards.all_dashboards()


@pytest.mark.parametrize("uid", BOARDS)
def test_a_dashboard_is_what_grafana_s_schema_allows(uid):
    schema = json.loads((SAMPLES / "grafana" / "schema" / "dashboard.jsonschema.json").read_text())
    # These two are "any" in the schema's source and became "object" in its JSON form: Grafana's own exports have strings and
    # numbers there, {"id": "byFrameRefID", "options": "B"}.
    schema["definitions"]["MatcherConfig"]["properties"]["options"] = {}
    schema["definitions"]["DynamicConfigValue"]["properties"]["value"] = {}
    errors = [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}"
        for error in jsonschema.Draft7Validator(schema).iter_errors(BOARDS[uid])
    ]
    assert errors == []
