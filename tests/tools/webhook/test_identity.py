"""Certificates: made, renewed, shared by replicas, trusted before they are used. TLS is real, the API is a stand-in."""

from __future__ import annotations

import base64
import copy
import http.client
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from dra_driver.base.errors import ApiError, NodeError
from dra_driver.base.telemetry.status_server import probe_pages
from dra_driver.tools.webhook.certificates import (
    LIFE,
    RENEW_BEFORE,
    CertificateFolder,
    CertificatePair,
    CertificateSecret,
    ServingIdentity,
    load_certificate_pair,
    make_certificate_pair,
    renewal_reason,
)
from dra_driver.tools.webhook.server import ReviewServer
from tests.support.waiting import until

NAMES = ("webhook.dra.svc", "webhook.dra.svc.cluster.local")
NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SECRET, CONFIGURATION = "/api/v1/namespaces/dra/secrets/s", "validatingwebhookconfigurations/w"


class StandInApi:
    """A Secret and a configuration, with optimistic concurrency. `order` lists what was written."""

    def __init__(self) -> None:
        webhooks = [{"name": name, "clientConfig": {"service": {}}} for name in ("configs", "selectors")]
        self.objects = {
            SECRET: {"metadata": {"resourceVersion": "1"}},
            CONFIGURATION: {"metadata": {"resourceVersion": "1"}, "webhooks": webhooks},
        }
        self.order: list[str] = []
        self.before_put = lambda: None

    def request(self, method, path, *, body=None):
        key = next((key for key in self.objects if path.endswith(key)), None)
        if key is None:
            raise ApiError("not-found", path, status=404)
        if method == "PUT":
            self.before_put()
            if body["metadata"]["resourceVersion"] != self.objects[key]["metadata"]["resourceVersion"]:
                raise ApiError("conflict", path, status=409)
            version = str(int(body["metadata"]["resourceVersion"]) + 1)
            self.objects[key] = {**copy.deepcopy(body), "metadata": {"resourceVersion": version}}
            self.order.append(key)
        return copy.deepcopy(self.objects[key])

    def bundles(self):
        return {
            base64.b64decode(one["clientConfig"]["caBundle"]).decode()
            for one in self.objects[CONFIGURATION]["webhooks"]
        }


@pytest.fixture
def api():
    return StandInApi()


def source(api, now=NOW):
    return CertificateSecret(api, namespace="dra", secret="s", configuration="w", names=NAMES, now=lambda: now)


def is_accepted(pair, trusted, name=NAMES[0]):
    """Return whether a client with these authorities accepts the pair in a handshake in memory."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate_pair(server_context, pair)
    client_context = ssl.create_default_context(cadata=trusted)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=name)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    done = set()
    for _ in range(10):
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLError:
                return False
    return len(done) == 2


def test_a_pair_is_accepted_with_its_own_authorities_and_for_its_own_names_only():
    now = datetime.now(UTC)
    pair, other = make_certificate_pair(NAMES, now), make_certificate_pair(NAMES, now)
    assert all(is_accepted(pair, pair.authorities, name) for name in NAMES)
    assert not is_accepted(pair, other.authorities)
    assert not is_accepted(pair, pair.authorities, "elsewhere.dra.svc")


def test_an_old_certificate_is_trusted_after_a_renewal_and_the_number_of_authorities_is_limited():
    now = datetime.now(UTC)
    old = make_certificate_pair(NAMES, now)
    new = make_certificate_pair(NAMES, now, old.authorities)
    assert is_accepted(old, new.authorities)
    assert is_accepted(new, new.authorities)
    for _ in range(5):
        new = make_certificate_pair(NAMES, now, new.authorities)
    assert new.authorities.count("BEGIN CERTIFICATE") == 3


def test_an_authority_that_has_expired_is_not_trusted_any_more():
    old = make_certificate_pair(NAMES, NOW - LIFE - timedelta(days=1))
    assert make_certificate_pair(NAMES, NOW, old.authorities).authorities.count("BEGIN CERTIFICATE") == 1


def test_a_pair_is_renewed_when_a_third_of_its_life_is_left_or_it_is_not_valid_here():
    good = make_certificate_pair(NAMES, NOW)
    assert renewal_reason(good, NAMES, NOW) == ""
    assert renewal_reason(good, NAMES, NOW + LIFE - RENEW_BEFORE - timedelta(seconds=1)) == ""
    assert "it ends" in renewal_reason(good, NAMES, NOW + LIFE - RENEW_BEFORE + timedelta(seconds=1))
    assert "not for x.svc" in renewal_reason(good, ("x.svc",), NOW)
    assert "key" in renewal_reason(
        CertificatePair(good.certificate, make_certificate_pair(NAMES, NOW).key, good.authorities), NAMES, NOW
    )
    assert renewal_reason(CertificatePair("", "", ""), NAMES, NOW)
    assert renewal_reason(CertificatePair("no pem", "no pem", "no pem"), NAMES, NOW)


def test_an_empty_secret_is_filled_and_every_webhook_trusts_it(api):
    pair = source(api).current()
    assert api.order == [SECRET, CONFIGURATION]
    assert api.bundles() == {pair.authorities}
    assert source(api).current() == pair
    assert len(api.order) == 2


def test_a_certificate_that_ends_soon_is_renewed_and_the_old_authority_is_kept(api):
    old = source(api).current()
    new = source(api, NOW + LIFE - timedelta(days=1)).current()
    assert new.certificate != old.certificate
    assert new.authorities.endswith(old.authorities)
    assert api.bundles() == {new.authorities}


def test_one_of_two_replicas_makes_the_certificate_and_the_other_uses_it(api):
    first = []

    def other_is_faster():
        api.before_put = lambda: None
        first.append(source(api).current())

    api.before_put = other_is_faster
    with pytest.raises(ApiError) as refused:
        source(api).current()
    assert refused.value.status == 409
    assert source(api).current() == first[0]


def test_a_bundle_that_was_removed_is_written_again(api):
    pair = source(api).current()
    for one in api.objects[CONFIGURATION]["webhooks"]:
        one["clientConfig"].pop("caBundle")
    source(api).current()
    assert api.bundles() == {pair.authorities}


def test_a_certificate_is_not_served_before_the_api_server_trusts_it(api):
    del api.objects[CONFIGURATION]
    identity = ServingIdentity(source(api))
    with pytest.raises(ApiError):
        identity.reload()
    assert identity.fault


def test_a_certificate_in_files_is_reloaded_when_the_files_change(tmp_path):
    pairs = [make_certificate_pair(NAMES, datetime.now(UTC)) for _ in range(2)]
    identity = ServingIdentity(CertificateFolder(tmp_path))
    with pytest.raises(NodeError, match="no certificate"):
        identity.reload()
    for pair in pairs:
        (tmp_path / "tls.crt").write_text(pair.certificate)
        (tmp_path / "tls.key").write_text(pair.key)
        identity.reload()
        assert not identity.fault
    (tmp_path / "tls.key").write_text(pairs[0].key)
    with pytest.raises(NodeError, match="can't be used"):
        identity.reload()


def test_a_certificate_in_mounted_files_is_replaced_while_the_server_runs(tmp_path):
    """The files change as a kubelet changes a mounted Secret: a new folder, then one link is replaced."""
    pairs = [make_certificate_pair(("localhost",), datetime.now(UTC)) for _ in range(2)]
    for number, pair in enumerate(pairs):
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        (folder / "tls.crt").write_text(pair.certificate)
        (folder / "tls.key").write_text(pair.key)
    (tmp_path / "..data").symlink_to("..0")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    identity = ServingIdentity(CertificateFolder(tmp_path), check_s=0.02, retry_s=0.02)
    identity.start()
    pages = probe_pages(metrics=bytes, readiness=tuple)
    server = ReviewServer(("127.0.0.1", 0), identity.context, reviewers={}, pages=pages)
    server.start()

    def is_served(pair):
        trust = ssl.create_default_context(cadata=pair.authorities)
        connection = http.client.HTTPSConnection("localhost", server.port, context=trust, timeout=60)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    try:
        until(lambda: is_served(pairs[0]))
        (tmp_path / "..next").symlink_to("..1")
        (tmp_path / "..next").replace(tmp_path / "..data")
        until(lambda: is_served(pairs[1]))
        assert not is_served(pairs[0])
        (tmp_path / "..data" / "tls.key").write_text("half of a ke")
        assert is_served(pairs[1])
    finally:
        server.stop()
        identity.stop()


def test_the_certificate_is_no_authority_and_its_authority_can_sign_no_other_authority():
    pair = make_certificate_pair(NAMES, NOW)
    [leaf] = x509.load_pem_x509_certificates(pair.certificate.encode())
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    [authority] = x509.load_pem_x509_certificates(pair.authorities.encode())
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length == 0
