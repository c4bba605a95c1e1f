"""Read the static entries of a kubeconfig file, without the official loader.

In: the path of a file (JSON or YAML), or of several files as KUBECONFIG lists them. Out: `Credentials` for its current
context, or None if only a program or an identity provider can supply the token (`exec`, `auth-provider`), which is left
to the official loader. YAML is imported only if the file is not JSON. No setting is ignored: one that is not supported
is an error that names it.

Source: kubernetes.io, reference of kubeconfig v1 (Config, Cluster, AuthInfo).
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.kube.credentials.tls import TlsMaterial
from dra_driver.kube.credentials.tokens import StaticToken, TokenFile, TokenSource
from dra_driver.model.errors import InputError

_UNSUPPORTED_USER = ("username", "password", "as", "as-uid", "as-groups", "as-user-extra")
_DYNAMIC = ("exec", "auth-provider")
_LISTS = {"clusters": "cluster", "users": "user", "contexts": "context"}
_MAX_SIZE = 4 << 20  # in characters
_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


@dataclass(frozen=True, slots=True)
class Credentials:
    """The server to reach, and how to authenticate. `server` has no trailing slash; `tls` is None for plain http."""

    server: str
    tokens: TokenSource
    tls: TlsMaterial | None = None


def read_kubeconfig(path: str, context: str = "") -> Credentials | None:
    """Read a context of a kubeconfig ("": its current one); return None if its user needs the official loader.

    `path` may be a list of files, as in KUBECONFIG: the first of several entries with one name wins, and missing files
    are ignored.

    Raises: InputError("input.kubeconfig") naming the file and the field.
    """
    reader, config = _parsed(path)
    return reader.read(config, context)


def read_namespace(path: str, context: str = "") -> str:
    """Return the namespace that a context ("": the current one) names, or "default".

    Raises: InputError("input.kubeconfig") naming the file and the field.
    """
    reader, config = _parsed(path)
    return reader.namespace(config, context)


def _parsed(path: str) -> tuple[_KubeconfigReader, dict[str, Any]]:
    """Parse one file, or join those of a list."""
    listed = [part for part in path.split(os.pathsep) if part]
    if len(listed) < 2 or Path(path).exists():
        reader = _KubeconfigReader(listed[0] if len(listed) == 1 else path)
        return reader, reader.parse()
    found = [part for part in listed if Path(part).exists()]
    if not found:
        raise InputError("kubeconfig", f"kubeconfig {path}: none of these files exists")
    return _KubeconfigReader(path), _merged([_KubeconfigReader(part).parse() for part in found])


def _merged(configs: list[dict[str, Any]]) -> dict[str, Any]:
    """Join files into one. `parse` has already resolved relative paths against the folder of each file."""
    contexts = (config.get("current-context") for config in configs)
    return {
        "current-context": next((name for name in contexts if name), ""),
        **{plural: [entry for config in configs for entry in config.get(plural) or []] for plural in _LISTS},
    }


class _KubeconfigReader:
    """A reader of one file: errors name the file, and relative paths start at its folder."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def read(self, config: dict[str, Any], chosen: str) -> Credentials | None:
        """Follow a context to its cluster and user."""
        name, context = self._context(config, chosen)
        cluster_name = self._text(context, "cluster", f"contexts[{name}].context.")
        user_name = self._text(context, "user", f"contexts[{name}].context.")
        cluster = self._entry(config, "clusters", "cluster", cluster_name)
        user = self._entry(config, "users", "user", user_name) if user_name else {}
        if any(user.get(key) for key in _DYNAMIC):
            return None
        return self._credentials(cluster, f"clusters[{cluster_name}].cluster.", user, f"users[{user_name}].user.")

    def namespace(self, config: dict[str, Any], chosen: str) -> str:
        """Return the namespace of a context."""
        name, context = self._context(config, chosen)
        return self._text(context, "namespace", f"contexts[{name}].context.") or "default"

    def _context(self, config: dict[str, Any], chosen: str) -> tuple[str, dict[str, Any]]:
        """Return the name and the content of the chosen context, or of the current one if none is chosen."""
        name = chosen or self._text(config, "current-context", "")
        if not name:
            raise self._error("current-context", "is empty")
        return name, self._entry(config, "contexts", "context", name)

    def _credentials(self, cluster: dict[str, Any], at: str, user: dict[str, Any], user_at: str) -> Credentials:
        server = self._text(cluster, "server", at).rstrip("/")
        if not server.startswith(("http://", "https://")):
            raise self._error(f"{at}server", f"{server!r} is not an http or https URL")
        if cluster.get("proxy-url"):
            raise self._error(f"{at}proxy-url", "is not supported")
        for key in _UNSUPPORTED_USER:
            if user.get(key):
                raise self._error(user_at + key, "is not supported")
        tls = self._tls(cluster, at, user, user_at) if server.startswith("https://") else None
        return Credentials(server, self._tokens(user, user_at), tls)

    def _tls(self, cluster: dict[str, Any], at: str, user: dict[str, Any], user_at: str) -> TlsMaterial:
        return TlsMaterial(
            ca_file=self._text(cluster, "certificate-authority", at),
            ca_pem=self._inline(cluster, "certificate-authority-data", at).decode(),
            cert_file=self._text(user, "client-certificate", user_at),
            key_file=self._text(user, "client-key", user_at),
            cert_pem=self._inline(user, "client-certificate-data", user_at),
            key_pem=self._inline(user, "client-key-data", user_at),
            server_name=self._text(cluster, "tls-server-name", at),
            is_unverified=cluster.get("insecure-skip-tls-verify") is True,
        )

    def _tokens(self, user: dict[str, Any], at: str) -> TokenSource:
        token, file = self._text(user, "token", at), self._text(user, "tokenFile", at)
        return TokenFile(file, fallback=token) if file else StaticToken(token)

    def parse(self) -> dict[str, Any]:
        """Return the file as a mapping whose paths are absolute."""
        config = self._parse()
        for plural, singular in _LISTS.items():
            entries = config.get(plural) or []
            if not isinstance(entries, list):
                raise self._error(plural, "is not a list")
            contents = [entry.get(singular) for entry in entries if isinstance(entry, dict)]
            for content in (it for it in contents if isinstance(it, dict)):
                for key in _FILES:
                    if name := self._text(content, key, f"{plural}."):
                        content[key] = str(self._path.parent / name)
        return config

    def _parse(self) -> dict[str, Any]:
        try:
            with self._path.open(encoding="utf-8-sig") as file:
                text = file.read(_MAX_SIZE + 1)
        except OSError as err:
            raise self._error("", f"can't be read: {err.strerror}") from err
        except ValueError as err:
            raise self._error("", f"can't be read: {err}") from err
        if len(text) > _MAX_SIZE:
            raise self._error("", f"is larger than {_MAX_SIZE >> 20} MiB")
        config: object
        if text.lstrip().startswith("{"):
            try:
                config = json.loads(text)
            except (ValueError, RecursionError) as err:
                raise self._error("", f"is not JSON: {err}") from err
        else:
            config = self._parse_yaml(text)
        if not isinstance(config, dict):
            raise self._error("", "is not a mapping")
        return config

    def _parse_yaml(self, text: str) -> object:
        # Imported here because it takes 1 MB of memory, which is not needed for a JSON kubeconfig or in a pod.
        import yaml  # noqa: PLC0415

        from dra_driver.documents.yaml_values import TooDeepError, load_yaml  # noqa: PLC0415

        try:
            return next(load_yaml(text), None)
        except (yaml.YAMLError, TooDeepError) as err:
            raise self._error("", f"is not YAML: {err or 'nested too deeply'}") from err

    def _entry(self, config: dict[str, Any], plural: str, singular: str, name: str) -> dict[str, Any]:
        """Look up a named entry; the first of several with the same name wins, as in kubectl."""
        entries = config.get(plural) or []
        if not isinstance(entries, list):
            raise self._error(plural, "is not a list")
        for entry in entries:
            if isinstance(entry, dict) and entry.get("name") == name:
                content = entry.get(singular) or {}
                if not isinstance(content, dict):
                    raise self._error(f"{plural}[{name}].{singular}", "is not a mapping")
                return content
        raise self._error(plural, f"has no entry named {name!r}")

    def _text(self, mapping: dict[str, Any], key: str, at: str) -> str:
        value = mapping.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self._error(at + key, "is not a string")
        return value

    def _inline(self, mapping: dict[str, Any], key: str, at: str) -> bytes:
        try:
            return base64.b64decode(self._text(mapping, key, at), validate=True)
        except (binascii.Error, ValueError) as err:
            raise self._error(at + key, "is not base64") from err

    def _error(self, field: str, fault: str) -> InputError:
        where = f"{self._path}: {field}" if field else str(self._path)
        return InputError("kubeconfig", f"kubeconfig {where} {fault}")
