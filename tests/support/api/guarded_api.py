"""The embedded API server with several users: tokens, what each may list, and the reviews that report both.

In: users by token, and grants: a user may list a resource in a namespace, or ("") in all of them.
"""

from __future__ import annotations

import json
from typing import Any

from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.http import HttpRequest, Response, Stream
from dra_driver.simulator.shapes import ApiRefusal, unauthorized

NAMESPACED = ("resourceclaims", "resourceclaimtemplates", "pods")
EVERYTHING = ("nodes", "namespaces", "resourceslices", "deviceclasses", *NAMESPACED)


class GuardedApi(EmbeddedApi):
    """An API server that checks what its users may list. `seen` are the users who sent a request with their token."""

    def __init__(self) -> None:
        super().__init__()
        self.users: dict[str, str] = {self.token: "root"}
        self.grants: dict[str, set[tuple[str, str]]] = {"root": {(one, "") for one in EVERYTHING}}
        self.seen: set[str] = set()

    def add(self, token: str, user: str, *grants: tuple[str, str]) -> None:
        """Add a user."""
        self.users[token] = user
        self.grants[user] = set(grants)

    def _serve(self, request: HttpRequest) -> Response | Stream | None:
        if request.method == "POST" and request.path.endswith("reviews"):
            try:
                return Response(201, json.dumps(self._reviewed(request)).encode())
            except ApiRefusal as refusal:
                return Response(refusal.status, json.dumps(refusal.wire()).encode())
        return super()._serve(request)

    def _user(self, request: HttpRequest) -> str:
        user = self.users.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if user is None:
            raise unauthorized()
        self.seen.add(user)
        return user

    def _reviewed(self, request: HttpRequest) -> dict[str, Any]:
        user, spec = self._user(request), json.loads(request.body).get("spec")
        if request.path.endswith("/selfsubjectreviews"):
            return {"status": {"userInfo": {"username": user, "groups": ["people"]}}}
        if request.path.endswith("/tokenreviews"):
            found = self.users.get(spec["token"])
            return {"status": {"authenticated": bool(found), "user": {"username": found, "groups": ["people"]}}}
        about = spec["resourceAttributes"]
        assert about["verb"] == "list"
        asked = spec["user"] if request.path.endswith("/subjectaccessreviews") else user
        return {"status": {"allowed": self._may(asked, about["resource"], about.get("namespace", ""))}}

    def _may(self, user: str, resource: str, namespace: str) -> bool:
        grants = self.grants.get(user, set())
        return (resource, "") in grants or (resource, namespace) in grants

    def _authenticate(self, request: HttpRequest) -> None:
        user, parts = self._user(request), request.path.strip("/").split("/")
        if parts == ["version"]:
            return
        namespace = parts[parts.index("namespaces") + 1] if "namespaces" in parts[:-1] else ""
        resource = next((one for one in parts if one in EVERYTHING and one != "namespaces"), parts[-1])
        if not self._may(user, resource, namespace):
            raise ApiRefusal(403, "Forbidden", f"{user} may not {request.method} {request.path}")
