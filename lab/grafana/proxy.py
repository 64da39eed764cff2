"""Queries to a data source in Grafana's name: /api/datasources/proxy/uid/<uid>/<path>, with its own login and headers."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import aiohttp
from aiohttp import web

TIMEOUT_S = 60
# Of the browser's request, what a data source needs; its login to Grafana is none of theirs.
PASSED_ON = ("Accept", "Content-Type", "X-Scope-OrgID")


async def forward(request: web.Request, source: Mapping[str, Any]) -> web.StreamResponse:
    url = f"{source['url'].rstrip('/')}/{request.match_info['path']}"
    headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers} | login(source)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.request(
                request.method, url, params=request.query, data=await request.read() or None, headers=headers
            ) as answer,
        ):
            body = await answer.read()
            return web.Response(status=answer.status, body=body, headers={"Content-Type": answer.content_type})
    except (aiohttp.ClientError, TimeoutError) as error:
        return web.json_response({"message": f"data source {source['name']} does not answer: {error}"}, status=502)


def login(source: Mapping[str, Any]) -> dict[str, str]:
    """Headers from the source's settings: httpHeaderName1 and httpHeaderValue1, and so on; basic authentication."""
    settings, secrets = source["jsonData"], source["secureJsonData"]
    headers = {
        name: secrets.get(key.replace("Name", "Value"), "") for key, name in settings.items() if key.startswith("httpHeaderName")
    }
    if source["basicAuth"]:
        pair = f"{source['basicAuthUser']}:{secrets.get('basicAuthPassword', '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    return headers
