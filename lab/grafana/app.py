"""The web server: every route of the API, who may use it, and the pages for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from lab.grafana import pages
from lab.grafana.access import Access
from lab.grafana.api.call import Call, Route
from lab.grafana.api.contact_points import ContactPoints
from lab.grafana.api.dashboards import Dashboards
from lab.grafana.api.datasources import DataSources
from lab.grafana.api.folders import Folders
from lab.grafana.api.mute_timings import MuteTimings
from lab.grafana.api.policies import Policies
from lab.grafana.api.rules import Rules
from lab.grafana.api.templates import Templates
from lab.grafana.errors import ApiError
from lab.grafana.evaluation import Evaluator
from lab.grafana.proxy import forward
from lab.grafana.store import Store

VERSION = "12.4.1"  # the Grafana whose API this is; the `buildInfo` that clients ask for
LARGEST_BODY_BYTES = 16 << 20
PAGE = Path(__file__).parent / "page"
# Nothing is asked of another server; a script's `style` attributes are how panels get their places and colours.
ONLY_FROM_HERE = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(store: Store, access: Access) -> web.Application:
    folders, sources = Folders(store), DataSources(store)
    areas = [
        folders,
        Dashboards(store, folders),
        sources,
        Rules(store),
        ContactPoints(store),
        Policies(store),
        MuteTimings(store),
        Templates(store),
    ]

    async def proxy(request: web.Request) -> web.StreamResponse:
        return await forward(request, sources.find(request.match_info["uid"]))

    app = web.Application(middlewares=[_refusals, _allowed(access)], client_max_size=LARGEST_BODY_BYTES)
    app.router.add_get("/api/health", _health)
    app.router.add_get("/api/prometheus/grafana/api/v1/rules", Evaluator(store).rules)
    app.router.add_route("*", "/api/datasources/proxy/uid/{uid}/{path:.*}", proxy)
    for area in areas:
        for route in area.routes():
            app.router.add_route(route.method, route.path, _handler(route))
    app.router.add_get("/", lambda request: _page(pages.overview(store.data)))
    app.router.add_get("/d/{uid}", lambda request: _page(pages.dashboard(store.data, request.match_info["uid"])))
    app.router.add_get("/d/{uid}/{slug}", lambda request: _page(pages.dashboard(store.data, request.match_info["uid"])))
    app.router.add_static("/preview/", PAGE)

    async def write(app: web.Application) -> None:
        store.write()

    app.on_cleanup.append(write)
    return app


def _handler(route: Route) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        text = await request.text()
        try:
            body = json.loads(text) if text else None
        except ValueError as error:
            raise ApiError(400, "bad request data") from error
        provenance = "" if "X-Disable-Provenance" in request.headers else "api"
        answer = route.answer(Call(dict(request.match_info), dict(request.query), body, provenance))
        return web.Response(status=204) if answer.status == 204 else web.json_response(answer.body, status=answer.status)

    return handle


async def _health(request: web.Request) -> web.StreamResponse:
    return web.json_response({"database": "ok", "version": VERSION, "commit": "stand-in"})


async def _page(html: str) -> web.StreamResponse:
    return web.Response(text=html, content_type="text/html", headers={"Content-Security-Policy": ONLY_FROM_HERE})


@web.middleware
async def _refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return web.json_response(error.body, status=error.status)
    except web.HTTPNotFound:
        return web.json_response(
            {"message": f"Not found (Grafana may have it; this stand-in has not): {request.path}"}, status=404
        )


def _allowed(access: Access) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != "/api/health" and not access.allows(request.headers.get("Authorization", "")):
            message = {"message": "Unauthorized" if "Authorization" not in request.headers else "Invalid username or password"}
            return web.json_response(message, status=401, headers={"WWW-Authenticate": 'Basic realm="Grafana (stand-in)"'})
        return await handler(request)

    return check


def serve(host: str, port: int, store: Store, access: Access) -> int:
    """Until SIGINT or SIGTERM."""
    try:
        web.run_app(application(store, access), host=host, port=port, print=None, access_log=None)
    except OSError as error:
        print(f"grafana (stand-in): cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}", file=sys.stderr)
        return 1
    return 0
