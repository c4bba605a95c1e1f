"""Odd reviews over real TLS: each gets a verdict, and what the node refuses is refused by the webhook.

The real reviewers, decoder and server take part; the fleet holds one device. Set FUZZ_EXAMPLES for a longer run.
"""

from __future__ import annotations

import copy
import http.client
import json
import os
import ssl
from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import ClaimError
from dra_driver.base.telemetry.status_server import probe_pages
from dra_driver.node.claims.config import decode_config
from dra_driver.tools.webhook.certificates import load_certificate_pair, make_certificate_pair
from dra_driver.tools.webhook.fleet import PublishedFleet
from dra_driver.tools.webhook.linting import FleetLinter, ImageAdvisor
from dra_driver.tools.webhook.server import UNREAD, ReviewServer, reviewers
from tests.support.api.embedded_client import slice_wire
from tests.tools.webhook.support.reviews import DRIVER, claim, config, device_class, request, review, template

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "150"))
ODD = [
    None, True, 0, -1, 1.5, float("nan"), float("-inf"), 10**4000, "", "\ud800", "\x00", "é" * 300, "1e999999999",
    "1e-999999999", "9" * 5000, "10Gi", "x" * 20_000, [], {}, [[]], [{}], {"": {}}, {"\ud800": 1}, {"[key]": 1},
    ["x"] * 50, {str(number): number for number in range(3000)},
]  # fmt: skip
ODD_TEXTS = [
    "9" * 9_000,
    "[" * 3_000 + "]" * 3_000,
    '{"a":' * 3_000 + "1" + "}" * 3_000,
    '{"a":1,"a":2}',
    '"\\ud800"',
    "1e400",
]
SEED = "SEED"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
LIMITS = {
    "defaultActiveThreadPercentage": 50,
    "defaultPinnedDeviceMemoryLimit": "10Gi",
    "defaultPerDevicePinnedMemoryLimit": {"0": "1Gi"},
    "multiUser": True,
}
SLICING = {"interval": "Long"}
CONFIG = config(strategy="MPS", timeSlicingConfig=SLICING, mpsConfig=LIMITS)
EXPRESSION = f'device.attributes["{DRIVER}"].model == "x"'


@pytest.fixture(scope="module")
def ask():
    """Return a function that sends a body and returns the status and the answer."""
    fleet = PublishedFleet((DRIVER,))
    fleet.replace_classes((device_class(expressions=["true"], name=DRIVER),))
    wire = slice_wire(
        "s",
        driver=DRIVER,
        devices=[
            {"name": "gpu-0", "attributes": {"model": {"string": "y"}, "cudaDriverVersion": {"version": "12.0.0"}}}
        ],
    )
    wire["metadata"]["uid"] = "s"
    fleet.replace_slices((wire,))
    pair, context = make_certificate_pair(("localhost",), datetime.now(UTC)), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_certificate_pair(context, pair)
    linter = FleetLinter(fleet, (DRIVER,), kubernetes="1.35")
    answers = reviewers((DRIVER,), linter, ImageAdvisor(fleet, (DRIVER,)))
    pages = probe_pages(metrics=bytes, readiness=tuple)
    server = ReviewServer(("127.0.0.1", 0), context, reviewers=answers, unread=UNREAD, pages=pages)
    server.start()
    trust = ssl.create_default_context(cadata=pair.authorities)
    connection = http.client.HTTPSConnection("localhost", server.port, context=trust, timeout=60)

    def send(path, body):
        connection.request("POST", path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()

    yield send
    connection.close()
    server.stop()


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def placed(whole, path, value):
    made = copy.deepcopy(whole)
    if not path:
        return value
    at = made
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return made


def is_review(body):
    """Return whether a body can be answered: it has the version and a UID of a possible length."""
    try:
        asked = json.loads(body)
        uid = asked["request"]["uid"]
        return asked["apiVersion"] == "admission.k8s.io/v1" and isinstance(uid, str) and len(uid) <= 256
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def refused_by_node(parameters):
    try:
        decode_config(parameters)
    except ClaimError:
        return True
    return False


ENV = {"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=99.1 brand=tesla,driver>=1"}
POD = {"containers": [{"name": "main", "env": [ENV]}], "resourceClaims": [{"name": "gpu"}]}
WHOLES = [
    review(template(CONFIG, requests=[request(EXPRESSION)])),
    review(claim(CONFIG, requests=[request(EXPRESSION)]), old=claim(CONFIG), operation="UPDATE"),
    review(device_class(CONFIG, expressions=[EXPRESSION])),
    review({"kind": "Pod", "metadata": {"annotations": {"gpu.nvidia.com/cuda-required": "99"}}, "spec": POD}),
]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_review_gets_a_verdict_whatever_value_a_field_has(ask, data):
    whole = data.draw(st.sampled_from(WHOLES))
    path = data.draw(st.sampled_from(list(places(whole))))
    body = json.dumps(placed(whole, path, data.draw(st.sampled_from(ODD) | JSON))).encode()
    for where in ("/configs", "/selectors", "/images"):
        status, text = ask(where, body)
        assert len(text) < 32 * 1024
        assert status == (200 if is_review(body) else 400), (where, text)
        assert status == 400 or isinstance(json.loads(text)["response"]["allowed"], bool)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_config_that_the_node_refuses_is_refused(ask, data):
    whole = CONFIG["opaque"]["parameters"]
    path = data.draw(st.sampled_from(list(places(whole))))
    parameters = placed(whole, path, data.draw(st.sampled_from(ODD) | JSON))
    parameters = data.draw(
        st.sampled_from([parameters, {**parameters, "more": 1} if isinstance(parameters, dict) else 1])
    )
    _, text = ask(
        "/configs", json.dumps(review(claim({"opaque": {"driver": DRIVER, "parameters": parameters}}))).encode()
    )
    answer = json.loads(text)["response"]
    if refused_by_node(json.loads(json.dumps(parameters))):
        assert answer["allowed"] is False
        assert 1 <= len(answer["status"]["details"]["causes"]) <= 20
    elif len(json.dumps(parameters)) < 10_000:
        assert answer["allowed"] is True


@pytest.mark.parametrize("text", ODD_TEXTS, ids=lambda text: text[:8])
@pytest.mark.parametrize("path", list(places(WHOLES[0])), ids=lambda path: ".".join(map(str, path)) or "all")
def test_no_text_in_a_field_causes_an_internal_error(ask, path, text):
    body = json.dumps(placed(WHOLES[0], path, SEED)).replace(f'"{SEED}"', text).encode()
    for where in ("/configs", "/selectors"):
        status, _ = ask(where, body)
        if len(path) > 2:  # below the request's own fields
            assert status == 200
        assert status in {200, 400}
