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
import logging
import os
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from dra_driver.base.errors import InputError
from dra_driver.base.machine import Stamp, stamp_of
from dra_driver.base.telemetry.logs import fields

# A secret as a file in memory, for libraries and commands that accept only the path of a file.


class SecretFile(NamedTuple):
    """A file that exists only as long as some process has it open: its path for each of them, and its descriptor."""

    path: str
    descriptor: int


@contextmanager
def secret_file(content: bytes) -> Iterator[SecretFile]:
    """Keep content in a file until the block ends. It is never on a disk."""
    descriptor = os.memfd_create("secret", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield SecretFile(f"/proc/self/fd/{descriptor}", descriptor)
    finally:
        os.close(descriptor)


# The TLS material for connections to the API server, and how to notice that its files were replaced.


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """Certificates in files or inline (PEM); inline ones win. Without a CA, the system's CAs are used."""

    ca_file: str = ""
    ca_pem: str = field(default="", repr=False)
    cert_file: str = ""
    key_file: str = ""
    cert_pem: bytes = field(default=b"", repr=False)
    key_pem: bytes = field(default=b"", repr=False)
    server_name: str = ""
    is_unverified: bool = False

    def stamp(self) -> tuple[Stamp | None, ...]:
        """Return a value that changes when one of the files was replaced or rewritten."""
        return tuple(stamp_of(name) for name in (self.ca_file, self.cert_file, self.key_file) if name)

    def context(self) -> ssl.SSLContext:
        """Build a client context. Raises: OSError (ssl.SSLError is one) for files that are missing or not PEM."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols(["http/1.1"])
        if self.is_unverified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif self.ca_pem:
            context.load_verify_locations(cadata=self.ca_pem)
        elif self.ca_file:
            context.load_verify_locations(cafile=self.ca_file)
        else:
            context.load_default_certs()
        if self.cert_pem or self.cert_file:
            self._load_client_certificate(context)
        return context

    def _load_client_certificate(self, context: ssl.SSLContext) -> None:
        """Load certificate and key. OpenSSL reads only files, so inline ones go through anonymous memory."""
        with ExitStack() as files:
            cert = files.enter_context(secret_file(self.cert_pem)).path if self.cert_pem else self.cert_file
            key = files.enter_context(secret_file(self.key_pem)).path if self.key_pem else self.key_file
            context.load_cert_chain(cert, key or None)


# The tokens for the Authorization header, read again when they may have been renewed.

log = logging.getLogger(__name__)

REREAD_SECONDS = 60.0
_MAX_TOKEN = 1 << 20  # bytes; real tokens have a few thousand


class TokenSource(Protocol):
    """The source of the Authorization header. Both methods may be called from any thread."""

    def authorization(self) -> str:
        """Return the value of the header; "" for none."""

    def reread(self) -> bool:
        """Get a new token at once; return whether it can help to send the request again."""


class StaticToken:
    """A token written in the kubeconfig itself, or none at all."""

    def __init__(self, token: str = "") -> None:
        self._header = bearer(token)

    def authorization(self) -> str:
        """Return the value of the header; "" for none."""
        return self._header

    def reread(self) -> bool:
        """Return False: there is nothing to read again."""
        return False


class TokenFile:
    """A token in a file that another process renews. `fallback` is used while the file can't be read."""

    def __init__(self, path: str, *, fallback: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = Path(path), clock
        self._lock = threading.Lock()
        self._header = bearer(fallback)
        self._read_at = float("-inf")

    def authorization(self) -> str:
        """Return the value of the header; read the file if the copy is older than a minute."""
        with self._lock:
            if self._clock() - self._read_at >= REREAD_SECONDS:
                self._read()
            return self._header

    def reread(self) -> bool:
        """Read the file now; return whether it holds a token other than the refused one."""
        with self._lock:
            refused = self._header
            self._read()
            return self._header != refused

    def _read(self) -> None:
        self._read_at = self._clock()
        try:
            self._header = bearer(_text_of(self._path)) or self._header
        except (OSError, ValueError) as err:  # keep the last token: it may still be valid, which the server decides
            why = err.strerror if isinstance(err, OSError) else str(err)
            log.warning("token file unreadable", extra=fields(file=str(self._path), err=why))


def _text_of(path: Path) -> str:
    """Return the token in a file, without waiting for a FIFO. Raises: OSError, ValueError if it holds no token."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        content = file.read(_MAX_TOKEN + 1).strip()
    if len(content) > _MAX_TOKEN or not all(0x21 <= byte <= 0x7E for byte in content):
        raise ValueError("not a token: it is too long, or has spaces or other characters that no header may have")
    return content.decode("ascii")


def bearer(token: str) -> str:
    """Return the value of the header for a token; "" for an empty one."""
    token = token.strip()
    return f"Bearer {token}" if token else ""


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

        from dra_driver.base.text.yaml_values import TooDeepError, load_yaml  # noqa: PLC0415

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
