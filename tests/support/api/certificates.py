"""Certificates made on the fly with the openssl program: a CA, a server's, a client's."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=120)


def make_ca(folder: Path, name: str) -> Path:
    """Make `<name>.key` and `<name>.crt`; return the certificate. Skip the test where openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    _openssl(
        folder, "req", "-x509", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-days", "2", "-subj",
        f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    return folder / f"{name}.crt"


def make_leaf(folder: Path, name: str, ca: str) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 and localhost signed by a CA of this folder; return (certificate, key)."""
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    _openssl(folder, "req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    (folder / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc\n")
    _openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial",
        "-out", f"{name}.crt", "-days", "2", "-extfile", f"{name}.ext",
    )  # fmt: skip
    return folder / f"{name}.crt", folder / f"{name}.key"


def server_context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    """Return a server's TLS context; with `client_ca` it demands a client certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context
