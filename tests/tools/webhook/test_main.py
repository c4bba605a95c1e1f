"""The whole webhook as `dra-driver webhook` runs it, with an API server that may not be there."""

from __future__ import annotations

import http.client
import json
import ssl
from datetime import UTC, datetime

import pytest

from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import CLAIMS, SLICES
from dra_driver.tools.webhook.certificates import make_certificate_pair
from dra_driver.tools.webhook.server import Settings, Webhook
from tests.support.api.embedded_client import slice_wire
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.tools.webhook.support.reviews import DRIVER, claim, config, request, review

OTHER = "gpu.amd.com"
UNITS = {"apiVersion": "gpu.resource.amd.com/v1alpha1", "kind": "GpuConfig", "computeUnits": {"count": 4}}


@pytest.fixture
def pair(tmp_path):
    made = make_certificate_pair(("localhost",), datetime.now(UTC))
    (tmp_path / "tls.crt").write_text(made.certificate)
    (tmp_path / "tls.key").write_text(made.key)
    return made


@pytest.fixture
def settings(tmp_path):
    named = {"namespace": "dra", "service": "s", "secret": "s", "configuration": "c"}
    kubeconfig = str(tmp_path / "kubeconfig")
    return Settings(address=("127.0.0.1", 0), drivers=(DRIVER, OTHER), kubeconfig=kubeconfig, tls_dir=tmp_path, **named)


def ask(webhook, pair, path, obj):
    trust = ssl.create_default_context(cadata=pair.authorities)
    connection = http.client.HTTPSConnection("localhost", webhook.server.port, context=trust, timeout=60)
    asked = review(obj)
    asked["request"]["namespace"] = obj["metadata"].get("namespace")
    connection.request("POST", path, json.dumps(asked).encode())
    try:
        return json.loads(connection.getresponse().read())["response"]
    finally:
        connection.close()


def answered(webhook, pair, path, obj):
    """Return the answer of the webhook, None while it does not serve yet."""
    try:
        return ask(webhook, pair, path, obj)
    except (OSError, http.client.HTTPException):
        return None


def test_configs_are_judged_without_an_api_server_and_selectors_once_there_is_one(settings, pair):
    api = EmbeddedApi()
    port = free_port()
    api.start(port)
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    api.request("POST", SLICES.path(), body=slice_wire(drivers=(DRIVER, OTHER), devices=[{"name": "gpu-0"}]))
    api.write_kubeconfig(settings.kubeconfig)
    api.stop()
    webhook = Webhook(settings)
    webhook.start()
    obj = claim(config(strategy="nonsense"), requests=[request(f'device.driver == "{DRIVER}" && device.driver == "x"')])
    try:
        assert not until(lambda: answered(webhook, pair, "/configs", obj))["allowed"]
        for driver, is_right in ((OTHER, True), (DRIVER, False)):
            units = claim({"opaque": {"driver": driver, "parameters": UNITS}})
            assert ask(webhook, pair, "/configs", units)["allowed"] is is_right
        assert "warnings" not in ask(webhook, pair, "/selectors", obj)
        api.start(port)
        [warning] = until(lambda: (answered(webhook, pair, "/selectors", obj) or {}).get("warnings"), "a warning")
        assert "none of the 1 devices" in warning
    finally:
        webhook.stop()
        api.stop()


def test_a_container_with_two_claims_under_mps_is_warned_of(settings, pair):
    api = EmbeddedApi()
    api.start()
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    api.request("POST", SLICES.path(), body=slice_wire(driver=DRIVER, devices=[{"name": "gpu-0"}]))
    mps = claim(config(strategy="MPS"), requests=[request(f'device.driver == "{DRIVER}"', name=n) for n in ("a", "b")])
    api.request("POST", CLAIMS.path("team"), body=mps)
    api.write_kubeconfig(settings.kubeconfig)
    webhook = Webhook(settings)
    webhook.start()
    container = {"name": "main", "resources": {"claims": [{"name": "x", "request": n} for n in ("a", "b")]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "x", "resourceClaimName": "c"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"}, "spec": spec}
    try:
        [warning] = until(lambda: (answered(webhook, pair, "/images", pod) or {}).get("warnings"), "a warning")
        assert warning.startswith("container main: x/a, x/b are under MPS")
    finally:
        webhook.stop()
        api.stop()
