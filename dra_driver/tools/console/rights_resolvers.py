"""Find out what a viewer may read according to the API server, and with whose credentials it is then read.

In: `PresentedIdentity`. Out: `AdmittedViewer`. `OwnRights` asks and reads with the viewer's own token, so the console
needs no rights at all; the tokens of one user share one backend. `ReviewedRights` asks by reviews of the token and of
every access, and reads with the console's credentials what the reviews permit; viewers whose rights are equal then
share one backend. Commands that are run for a viewer get a kubeconfig with the viewer's own token.

Source: Kubernetes, TokenReview, SelfSubjectReview, SubjectAccessReview, SelfSubjectAccessReview.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from dra_driver.base.errors import ApiError
from dra_driver.base.wire import Wire
from dra_driver.kube import paths
from dra_driver.kube.api import KubeApi
from dra_driver.kube.kubeconfig import Credentials, bearer
from dra_driver.kube.paths import may_list, own_user, owner_of
from dra_driver.kube.watch import objects
from dra_driver.tools.console.cluster_reader import Rights, rights_of
from dra_driver.tools.console.events import WatchedKind
from dra_driver.tools.console.sign_in import PresentedIdentity

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
