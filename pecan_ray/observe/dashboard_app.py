"""The dashboard as an ASGI application: who may see it, which address shows what."""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
import urllib.parse
from collections import OrderedDict
from collections.abc import Collection
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from pecan_ray.observe.dashboard.frame import message_page, token_page
from pecan_ray.observe.dashboard.from_view import line_of, record_of
from pecan_ray.observe.dashboard.job_list import list_page
from pecan_ray.observe.dashboard.job_page import job_page
from pecan_ray.observe.dashboard_cluster import ReadCache, read_jobs, read_view
from pecan_ray.observe.dashboard_past import BROKEN, PastReports
from pecan_ray.runtime.cluster import node_names

SESSION = "pecan-dashboard"
"""The cookie of those who have shown the token."""
# People who are logged in; the oldest session ends first, and has to show the token again.
MOST_SESSIONS = 1000
MOST_TOKEN_BYTES = 10_000
"""Of a form that is sent to us."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
OPEN = ("/token", "/style.css")
"""What is shown without a token."""
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:]*)(:\d*)?")
OTHER_NAME = "this page is not served by that name: ask for its address, or name it by `pecan dashboard --name NAME`"


def build_app(names: Collection[str] = ()) -> Starlette:
    """Return the application; it is made where it runs.  `names`: of hosts that it is reached by."""
    return Dashboard(names).app


class Dashboard:
    """The pages."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = {name.lower() for name in (*names, socket.gethostname())}
        self._cached_reads, self._past_reports = ReadCache(), PastReports()
        self._sessions: OrderedDict[str, None] = OrderedDict()
        routes = [
            Route("/", self.jobs),
            Route("/job", self.job),
            Route("/past", self.past_job),
            Route("/token", self.token, methods=["GET", "POST"]),
            Route("/style.css", lambda request: _file("style.css", "text/css")),
            Route("/live.js", lambda request: _file("live.js", "text/javascript")),
        ]
        guard = Middleware(BaseHTTPMiddleware, dispatch=self.guard_call)
        self.app = Starlette(routes=routes, middleware=[guard], exception_handlers={404: self.missing})

    async def guard_call(self, request: Request, go_on: RequestResponseEndpoint) -> Response:
        """Show pages to those who have the cluster's token, as Ray's own dashboard does; to all where it has none.

        Without one, a page of the web that a user has open could read them by a name of its own that it lets point
        here: so only names are answered to that no page of the web can have.
        """
        base, guards = _base(request), token_needed()
        if not guards and not self._is_allowed_host(request.headers.get("host", "")):
            answer: Response = PlainTextResponse(OTHER_NAME, 403)
        elif not guards or request.url.path.removeprefix(base) in OPEN or self._known(request):
            answer = await go_on(request)
        else:
            answer = HTMLResponse(token_page(base, wrong=False), 401)
        answer.headers.update(HEADERS)
        return answer

    def _is_allowed_host(self, host: str) -> bool:
        """Tell whether a host that a browser says it asks is an address, a name of this network, or named to us."""
        found = HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].strip("[]").lower()
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return "." not in name or name in self._names

    def _known(self, request: Request) -> bool:
        shown = request.headers.get("authorization") or request.headers.get("x-ray-authorization")
        return token_matches(shown) if shown else request.cookies.get(SESSION) in self._sessions

    async def token(self, request: Request) -> Response:
        """Take the token, and let the browser in until this process ends."""
        base = _base(request)
        if request.method == "GET":
            return HTMLResponse(token_page(base, wrong=False))
        sent = b""
        # Piece by piece: what a stranger announces as its length need not be true.
        async for part in request.stream():
            sent += part
            if len(sent) > MOST_TOKEN_BYTES:
                return Response("too long", 413)
        form = urllib.parse.parse_qs(sent.decode("utf-8", "replace"))
        if token_needed() and not token_matches(f"Bearer {form.get('token', [''])[0].strip()}"):
            return HTMLResponse(token_page(base, wrong=True), 403)
        session = secrets.token_urlsafe(32)
        self._sessions[session] = None
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        # 303: the browser asks for the list by GET, and sends the token no second time.
        answer = RedirectResponse(f"{base}/", 303)
        # Over http a browser would never send a secure cookie back.
        secure = request.url.scheme == "https"
        answer.set_cookie(SESSION, session, path=base or "/", httponly=True, samesite="strict", secure=secure)
        return answer

    async def jobs(self, request: Request) -> Response:
        """Show the list of jobs."""
        jobs, silent = await run_in_threadpool(self._cached_reads.read, "jobs", read_jobs)
        past = await run_in_threadpool(self._cached_reads.read, "past jobs", self._past_reports.lines)
        return HTMLResponse(list_page(_base(request), [line_of(one) for one in jobs], past, silent))

    async def job(self, request: Request) -> Response:
        """Show one job."""
        name = request.query_params.get("name", "")
        view = await run_in_threadpool(self._cached_reads.read, f"job {name}", lambda: read_view(name))
        if view is None:
            text = f"No job {name!r} runs on this cluster, or it does not answer now. It may have ended."
            return HTMLResponse(message_page("No such job", _base(request), text), 404)
        nodes = await run_in_threadpool(self._cached_reads.read, "nodes", node_names)
        return HTMLResponse(job_page(_base(request), record_of(view, nodes)))

    async def past_job(self, request: Request) -> Response:
        """Show one that is over."""
        record = await run_in_threadpool(self._past_reports.record, request.query_params.get("key", ""))
        if record is None:
            return HTMLResponse(message_page("No such job", _base(request), "No such report is kept here."), 404)
        try:
            return HTMLResponse(job_page(_base(request), record))
        except BROKEN as error:
            text = f"This report cannot be shown, since it holds what no job reports ({type(error).__name__})."
            return HTMLResponse(message_page("No page of this job", _base(request), text), 422)

    async def missing(self, request: Request, error: Exception) -> Response:
        """Say that there is no such page."""
        return HTMLResponse(message_page("No such page", _base(request), "There is nothing at this address."), 404)


def token_needed() -> bool:
    """Tell whether the cluster asks for a token."""
    try:
        from ray._private.authentication.authentication_utils import is_token_auth_enabled
    except ImportError:  # this Ray has no tokens
        return False
    return bool(is_token_auth_enabled())


def token_matches(header: str) -> bool:
    """Tell whether a header `Bearer TOKEN` has the cluster's token."""
    from ray._private.authentication.authentication_utils import validate_request_token

    return bool(validate_request_token(header))


def _base(request: Request) -> str:
    return str(request.scope.get("root_path", "")).rstrip("/")


def _file(name: str, kind: Any) -> Response:
    return Response(files("pecan_ray.observe.dashboard").joinpath(name).read_text(), media_type=kind)
