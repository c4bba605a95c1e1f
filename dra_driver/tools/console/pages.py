"""The pages: one HTML document, the modules and styles that it loads, and the exchange of a token for a cookie.

In: requests that the guard let through. Out: files of `static`. None of them contains anything from a cluster.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from dra_driver import __version__
from dra_driver.tools.console.backend import Backend
from dra_driver.tools.console.guard import ConsoleSession

_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}
_NONCE = "{nonce}"


@cache
def _files() -> dict[str, Traversable]:
    """Return every file that may be requested, by its path; no other path exists."""
    found: dict[str, Traversable] = {}

    def add(folder: Traversable, prefix: str) -> None:
        for one in folder.iterdir():
            if one.is_dir():
                add(one, f"{prefix}{one.name}/")
            elif any(one.name.endswith(ending) for ending in _TYPES):
                found[f"{prefix}{one.name}"] = one

    add(files("dra_driver.tools.console") / "static", "")
    return found


@cache
def _content(path: str) -> bytes:
    return _files()[path].read_bytes()


async def index(request: Request) -> Response:
    """Return the HTML document, with the nonce for the styles that its modules add."""
    return document_of("index.html", request)


def document_of(name: str, request: Request) -> Response:
    """Return an HTML document of `static`, with the nonce, the version and whether the viewer has signed in."""
    signed_in = "yes" if request.scope.get("is_signed_in") else "no"
    text = _content(name).decode().replace(_NONCE, request.scope["csp_nonce"])
    text = text.replace("{version}", __version__).replace("{signed_in}", signed_in)
    return Response(text, media_type="text/html")


async def static(request: Request) -> Response:
    """Return a module, a style or a picture."""
    path = request.path_params["path"]
    if path not in _files():
        return PlainTextResponse("There is no such file.\n", 404)
    ending = path[path.rindex(".") :]
    headers = {"cache-control": "private, max-age=3600"} if path.startswith("vendor/") else {}
    return Response(_content(path), media_type=_TYPES[ending], headers=headers)


def routes() -> list[Route]:
    """Return the routes that every console has. The guard has already put the backend into the scope of a question."""

    async def question(request: Request) -> Response:
        backend: Backend = request.scope["backend"]
        return await backend.api.question(request)

    async def events(request: Request) -> Response:
        backend: Backend = request.scope["backend"]
        return await backend.api.events(request)

    return [
        Route("/", index),
        Route("/static/{path:path}", static),
        Route("/api/v1/events", events),
        Route("/api/v1/{name:path}", question, methods=["GET", "POST"]),
    ]


def entry_route(prefix: str, session: ConsoleSession) -> Route:
    """Return the page that exchanges the token of the opened address for a cookie."""

    async def enter(request: Request) -> Response:
        cookie = session.exchange(request.path_params["token"])
        if cookie is None:
            text = "This address has been used already, or is incomplete.\nStart `dra-driver console` again.\n"
            return PlainTextResponse(text, 401)
        answer = RedirectResponse("/", 303)
        answer.set_cookie(session.cookie_name, cookie, httponly=True, samesite="strict", path="/")
        return answer

    return Route(f"{prefix}{{token}}", enter)
