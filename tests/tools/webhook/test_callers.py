"""Callers over real TLS, with and without a certificate that proves that they are an API server."""

from __future__ import annotations

import http.client
import json
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from dra_driver.base.errors import NodeError
from dra_driver.base.telemetry.status_server import probe_pages
from dra_driver.tools.webhook.certificates import load_certificate_pair, make_certificate_pair
from dra_driver.tools.webhook.fleet import Callers
from dra_driver.tools.webhook.review import review_configs
from dra_driver.tools.webhook.server import ReviewServer
from tests.tools.webhook.support.reviews import DRIVER, claim, review

NAME = "localhost"


def client(folder, name, authority=None):
    """Write a client certificate with its key; return its file and the authority's."""
    now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    issuer, signer = authority or (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]), key)
    is_root = authority is None
    subject = issuer if is_root else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=is_root, path_length=None), critical=True)
    )
    if not is_root:
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        made = made.add_extension(usage, critical=False)
    pem = serialization.Encoding.PEM
    text = made.sign(signer, hashes.SHA256()).public_bytes(pem)
    text += key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file = folder / f"{name}.pem"
    file.write_bytes(text)
    return file, (issuer, key)


@pytest.fixture
def asked(tmp_path):
    """Return a function that sends a review with or without a client certificate and returns the status."""
    pair, servers = make_certificate_pair((NAME,), datetime.now(UTC)), []

    def ask(callers, certificate=None, path="/configs"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_certificate_pair(context, pair)
        reviewers = {"/configs": lambda it, _waiting: review_configs(it, (DRIVER,))}
        pages = probe_pages(metrics=bytes, readiness=tuple)
        server = ReviewServer(("127.0.0.1", 0), context, reviewers=reviewers, pages=pages, callers=callers)
        server.start()
        servers.append(server)
        trust = ssl.create_default_context(cadata=pair.authorities)
        if certificate:
            trust.load_cert_chain(certificate)
        connection = http.client.HTTPSConnection(NAME, server.port, context=trust, timeout=60)
        body = json.dumps(review(claim())).encode()
        connection.request("GET" if path == "/healthz" else "POST", path, None if path == "/healthz" else body)
        try:
            return connection.getresponse().status
        finally:
            connection.close()

    yield ask
    for server in servers:
        server.stop()


@pytest.fixture
def authority(tmp_path):
    return client(tmp_path, "root")


def test_every_caller_is_answered_where_no_authority_is_given(asked):
    assert asked(Callers()) == 200


def test_only_callers_with_a_certificate_are_answered_where_an_authority_is_given(asked, authority, tmp_path):
    file, signer = authority
    callers = Callers(file)
    assert asked(callers) == 403
    assert asked(callers, client(tmp_path, "kube-apiserver", signer)[0]) == 200
    assert asked(callers, path="/healthz") == 200


def test_a_certificate_of_another_authority_ends_the_handshake(asked, authority, tmp_path):
    folder = tmp_path / "other"
    folder.mkdir()
    _, other = client(folder, "root")
    with pytest.raises((OSError, http.client.HTTPException)):
        asked(Callers(authority[0]), client(folder, "kube-apiserver", other)[0])


def test_only_callers_with_one_of_the_given_names_are_answered(asked, authority, tmp_path):
    file, signer = authority
    certificate = client(tmp_path, "kubelet-n1", signer)[0]
    assert asked(Callers(file, ("kube-apiserver",)), certificate) == 403
    assert asked(Callers(file, ("kube-apiserver", "kubelet-n1")), certificate) == 200


def test_a_file_that_holds_no_authorities_is_an_error_of_the_node(tmp_path):
    (tmp_path / "empty").write_text("nothing")
    for name in ("empty", "missing"):
        with pytest.raises(NodeError, match="can't be used"):
            Callers(tmp_path / name).prepare(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
