"""Who a viewer is: the session after signing in, and what the viewer may read according to the API server.

In: a token that the cluster has accepted, and later the Cookie header of requests. Out: the identity to which a session
belongs. Sessions are in memory only, under the digests of their names. A session ends when its viewer signs out, when
it is not used for half an hour, after eight hours, and when the cluster no longer accepts its token. A cookie is a
random name of a session, and useless anywhere else.

`OwnRights` asks and reads with the viewer's own token, so the console needs no rights at all; the tokens of one user
share one backend. `ReviewedRights` asks by reviews of the token and of every access, and reads with the console's
credentials what the reviews permit; viewers whose rights are equal then share one backend. Commands that are run for a
viewer get a kubeconfig with the viewer's own token.

Source: RFC 6265bis (the prefix `__Host-`); OWASP Session Management Cheat Sheet (identifiers, idle and absolute ends);
Kubernetes, TokenReview, SelfSubjectReview, SubjectAccessReview, SelfSubjectAccessReview.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from http.cookies import CookieError, SimpleCookie
from typing import Protocol

from starlette.datastructures import Headers

from dra_driver.base.errors import ApiError
from dra_driver.base.wire import Wire
from dra_driver.kube import paths
from dra_driver.kube.api import KubeApi
from dra_driver.kube.kubeconfig import Credentials, bearer
from dra_driver.kube.paths import may_list, own_user, owner_of
from dra_driver.kube.watch import objects
from dra_driver.tools.console.cluster_reader import Rights, rights_of
from dra_driver.tools.console.events import WatchedKind
from dra_driver.tools.console.responses import owner_of_user, to_give_up

# The identity that a request presents: a token of the API server, or a user in the headers of a trusted proxy.

MAX_TOKEN = 16_000  # characters; the head of a request may have 16 KiB
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # the characters that are allowed in a header


@dataclass(frozen=True, slots=True)
class PresentedIdentity:
    """The identity in a request: a token, or a user with groups for whom a proxy vouches."""

    token: str = field(default="", repr=False)
    user: str = ""
    groups: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """A name for the identity that does not reveal its token."""
        return hashlib.sha256(json.dumps([self.token, self.user, *self.groups]).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TrustedProxy:
    """The proxy whose headers are trusted: the names that its certificate may have, and which headers it sends."""

    names: frozenset[str]
    user_header: str = "x-remote-user"
    group_header: str = "x-remote-group"


def presented_identity(
    headers: Headers,
    certificate_names: frozenset[str],
    proxy: TrustedProxy | None,
    of_session: Callable[[str], PresentedIdentity | None],
) -> PresentedIdentity | None:
    """Return the identity in a request; None if there is none that can be trusted.

    Headers of a proxy count only on a connection with the proxy's certificate; on any other they are ignored.
    `of_session` returns whose session a Cookie header names.
    """
    if proxy is not None and certificate_names & proxy.names:
        users = headers.getlist(proxy.user_header)
        if len(users) == 1 and users[0].strip():
            return PresentedIdentity(user=users[0].strip(), groups=tuple(headers.getlist(proxy.group_header)))
        if users:
            return None
    sent = headers.getlist("authorization")
    if sent:
        scheme, _, token = sent[0].partition(" ")
        return (
            PresentedIdentity(token.strip())
            if len(sent) == 1 and scheme.lower() == "bearer" and is_token(token)
            else None
        )
    return of_session(headers.get("cookie", ""))


def is_token(text: str) -> bool:
    """Return whether a text can be a token."""
    return len(text) <= MAX_TOKEN and _TOKEN.fullmatch(text.strip()) is not None


IDLE_SECONDS = 1_800.0
WHOLE_SECONDS = 8 * 3_600.0
MAX_SESSIONS = 1_000
MAX_OF_USER = 16
_BYTES = 32


@dataclass(slots=True)
class _Session:
    identity: PresentedIdentity
    user: str
    began: float
    used: float

    def is_over(self, now: float) -> bool:
        return now - self.used > IDLE_SECONDS or now - self.began > WHOLE_SECONDS


class ViewerSessions:
    """All sessions. `cookie` is the name of the cookie. Call all methods in the event loop."""

    def __init__(self, cookie: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.cookie, self._clock = cookie, clock
        self._sessions: dict[bytes, _Session] = {}

    def __len__(self) -> int:
        """Return how many sessions are held."""
        return len(self._sessions)

    def begin(self, identity: PresentedIdentity, user: str) -> str:
        """Begin a session of a user whom the cluster has just accepted; return the value of its cookie."""
        name, now = secrets.token_urlsafe(_BYTES), self._clock()
        self._drop(lambda one: one.is_over(now))
        own = {key: (user, one.used) for key, one in self._sessions.items() if one.user == user}
        if len(own) >= MAX_OF_USER:
            del self._sessions[to_give_up(own)]
        elif len(self._sessions) >= MAX_SESSIONS:
            of_all = {key: (owner_of_user(one.user), one.used) for key, one in self._sessions.items()}
            del self._sessions[to_give_up(of_all)]
        self._sessions[_key(name)] = _Session(identity, user, now, now)
        return name

    def identity(self, cookies: str) -> PresentedIdentity | None:
        """Return whose session the Cookie header of a request names; None if it names none that goes on."""
        # The digest of what was sent is looked up, so the time that this takes says nothing about any session's name.
        key, now = _key(self._named(cookies)), self._clock()
        session = self._sessions.get(key)
        if session is None:
            return None
        if session.is_over(now):
            del self._sessions[key]
            return None
        session.used = now
        return session.identity

    def end(self, cookies: str) -> None:
        """End the session that a Cookie header names, if it names one."""
        self._sessions.pop(_key(self._named(cookies)), None)

    def end_all_of(self, identity: PresentedIdentity) -> None:
        """End all sessions with a token that the cluster no longer accepts."""
        self._drop(lambda one: one.identity == identity)

    def _drop(self, is_dropped: Callable[[_Session], bool]) -> None:
        self._sessions = {key: one for key, one in self._sessions.items() if not is_dropped(one)}

    def _named(self, cookies: str) -> str:
        try:
            found = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""


def _key(name: str) -> bytes:
    return hashlib.sha256(name.encode(errors="replace")).digest()


_ACCOUNT = "system:serviceaccount:"
_CREDENTIAL = "authentication.kubernetes.io/"  # Kubernetes' own extra fields: the id of a token, its pod and its node


def kubeconfig_text(server: Credentials, token: str) -> str:
    """Return a kubeconfig, as JSON."""
    cluster: Wire = {"server": server.server}
    if (tls := server.tls) is not None:
        if tls.ca_pem:
            cluster["certificate-authority-data"] = base64.b64encode(tls.ca_pem.encode()).decode()
        elif tls.ca_file:
            cluster["certificate-authority"] = tls.ca_file
        if tls.server_name:
            cluster["tls-server-name"] = tls.server_name
        if tls.is_unverified:
            cluster["insecure-skip-tls-verify"] = True
    name = "viewer"
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        }
    )


class LatestToken:
    """The token of a user that the cluster accepted last; others of the same user may have ended meanwhile."""

    def __init__(self, token: str) -> None:
        self._token = self._sent = token

    def replace_with(self, other: LatestToken) -> None:
        """Use another token of the same user from now on."""
        self._token = other._token

    def authorization(self) -> str:
        """Return the value of the header."""
        self._sent = self._token
        return bearer(self._sent)

    def reread(self) -> bool:
        """Return whether there is another token than the one that was sent last."""
        return self._token != self._sent


@dataclass(frozen=True, slots=True)
class ViewerAccess:
    """Access to the cluster with given credentials. `token` is that of the viewer, if it is used."""

    credentials: Credentials
    token: LatestToken | None = None
    home: str = "default"

    def connect(self) -> KubeApi:
        """Connect to the cluster."""
        return KubeApi(self.credentials)


@dataclass(frozen=True, slots=True)
class AdmittedViewer:
    """A viewer whom the cluster has authenticated. Viewers with an equal `key` may share what is read with `access`.

    `kubeconfig` is the text of a kubeconfig with the viewer's own token, for commands; "" if there is none. `user` is
    the name that the cluster has for the viewer.
    """

    key: Hashable
    rights: Rights
    access: ViewerAccess
    kubeconfig: str = field(default="", repr=False)
    user: str = ""


class RightsResolver(Protocol):
    """Finds out the rights of viewers. It asks the API server, so it is called in threads."""

    def resolve(self, one: PresentedIdentity) -> AdmittedViewer | None:
        """Return what a viewer may read; None for a person whom the cluster does not know. Raises: ApiError."""


@dataclass(frozen=True, slots=True)
class OwnRights:
    """Uses the viewer's own token for everything. `server` is the API server's address without credentials.

    `namespaces` are tried, beside that of a ServiceAccount, for viewers who may not list namespaces.
    """

    server: Credentials
    namespaces: tuple[str, ...] = ()

    def resolve(self, one: PresentedIdentity) -> AdmittedViewer | None:
        """Ask with the viewer's token. Raises: ApiError."""
        if not one.token:
            return None
        token = LatestToken(one.token)
        access = ViewerAccess(replace(self.server, tokens=token), token)
        api = access.connect()
        try:
            user = own_user(api)
            rights = rights_of(lambda kind, place: may_list(None, kind.path, place, api), lambda: self._known(api, one))
        except ApiError as fault:
            if fault.status == 401:
                return None
            raise
        finally:
            api.close()
        kubeconfig = kubeconfig_text(self.server, one.token)
        return AdmittedViewer((_of_all_tokens(user), rights), rights, access, kubeconfig, user["username"])

    def _known(self, api: KubeApi, one: PresentedIdentity) -> Sequence[str]:
        own = tuple(dict.fromkeys((*_namespace_of(one.token), *self.namespaces)))
        if may_list(None, paths.NAMESPACES, "", api):
            return [*own, *(name for name in _all_namespaces(api) if name not in own)]
        return own


@dataclass(frozen=True, slots=True)
class ReviewedRights:
    """Reviews every access; `console` are the console's own credentials."""

    console: Credentials
    namespaces: tuple[str, ...] = ()

    def resolve(self, one: PresentedIdentity) -> AdmittedViewer | None:
        """Review the token, if there is one, and then every access. Raises: ApiError."""
        api = KubeApi(self.console)
        try:
            user: Wire | None = {"username": one.user, "groups": [*one.groups, "system:authenticated"]}
            if one.token:
                user = owner_of(one.token, api)
            if user is None:
                return None

            def may(kind: WatchedKind, place: str) -> bool:
                return may_list(user, kind.path, place, api)

            rights = rights_of(may, lambda: self._known(api, user))
        finally:
            api.close()
        return AdmittedViewer(rights, rights, ViewerAccess(self.console), user=str(user["username"]))

    def _known(self, api: KubeApi, user: Wire) -> Sequence[str]:
        """Return the namespaces that are tried; that of a ServiceAccount comes first."""
        own = _of_account(str(user.get("username")))
        first = tuple(dict.fromkeys((*own, *self.namespaces)))
        return [*first, *(name for name in _all_namespaces(api) if name not in first)]


def _of_all_tokens(user: Wire) -> str:
    """Return what the API server knows of a user by any of their tokens: their accesses depend on nothing else."""
    extra = user.get("extra")
    fields = extra.items() if isinstance(extra, dict) else ()
    kept = {name: value for name, value in fields if not name.startswith(_CREDENTIAL)}
    return json.dumps([user["username"], user.get("uid"), user.get("groups"), kept], sort_keys=True)


def _all_namespaces(api: KubeApi) -> list[str]:
    found = [one.get("metadata") for one in objects(api, paths.NAMESPACES)]
    return [str(metadata.get("name")) for metadata in found if isinstance(metadata, dict)]


def _namespace_of(token: str) -> tuple[str, ...]:
    """Return the namespace of a ServiceAccount's token, unverified: it is only tried, and the API server decides."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return _of_account(str(claims.get("sub")))
    except (IndexError, ValueError, binascii.Error, AttributeError, RecursionError):
        return ()


def _of_account(user: str) -> tuple[str, ...]:
    return (user.removeprefix(_ACCOUNT).partition(":")[0],) if user.startswith(_ACCOUNT) else ()
