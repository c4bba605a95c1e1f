"""Verdicts of the embedded API compared with recorded ones of real API servers (support/record_verdicts.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.shapes import ApiRefusal
from tests.simulator.support.api_cases import ALL_GATES, BROKEN_STATUSES, creations, digest, verdict
from tests.support.api.embedded_client import CLAIMS, claim_wire

VERDICTS = json.loads((Path(__file__).parent / "verdicts.json").read_text())
PANIC = [0]  # the server closed the connection without an answer: a step of 0, which the embedded API refuses


def server_of(setting):
    version, gates = setting.split()
    return EmbeddedApi(version=version, gates=ALL_GATES if gates == "all" else {})


def answer_of(server, method, path, body):
    try:
        answer = json.loads(json.dumps(server.request(method, path, body=body)))
    except ApiRefusal as refusal:
        return verdict(refusal.status, refusal.wire())
    return verdict(201 if method == "POST" else 200, answer)


@pytest.mark.parametrize("setting", sorted(VERDICTS))
def test_a_new_object_is_judged_as_the_server_judged_it(setting):
    wrong = {}
    for name, kind, collection, wire in creations():
        recorded = VERDICTS[setting][name]
        body = {"apiVersion": "resource.k8s.io/v1", "kind": kind, **wire}
        assert recorded["asked"] == digest(body), f"the case {name} changed: record it anew"
        given = answer_of(server_of(setting), "POST", collection, body)
        expected = recorded["verdict"]
        if given[0] != 422 if expected == PANIC else given != expected:
            wrong[name] = (given, expected)
    assert wrong == {}


@pytest.mark.parametrize("setting", sorted(VERDICTS))
def test_a_status_is_judged_as_the_server_judged_it(setting):
    wrong = {}
    for number, status in enumerate(BROKEN_STATUSES):
        recorded = VERDICTS[setting][f"status-{number:03}"]
        assert recorded["asked"] == digest(status), f"the status {number} changed: record it anew"
        server = server_of(setting)
        server.request("POST", CLAIMS, body=claim_wire())
        body = {**server.request("GET", f"{CLAIMS}/c"), "status": status}
        if (given := answer_of(server, "PUT", f"{CLAIMS}/c/status", body)) != recorded["verdict"]:
            wrong[number] = (given, recorded["verdict"])
    assert wrong == {}
