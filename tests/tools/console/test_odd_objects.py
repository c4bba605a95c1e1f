"""Odd objects of a cluster: they are left out and counted, or shown, and end neither the worker nor a watch."""

from __future__ import annotations

import json
from itertools import islice
from typing import ClassVar

import pytest

from dra_driver.base.errors import DriverError
from dra_driver.simulator.http import Response
from dra_driver.tools.console.board import Board, trimmed
from dra_driver.tools.console.board_updates import ObjectChanged, PageRead, UpdateApplier
from dra_driver.tools.console.cluster_reader import _users
from dra_driver.tools.console.responses import written
from dra_driver.tools.console.worker import ANSWERS
from tests.support.api.guarded_api import EVERYTHING, GuardedApi
from tests.support.console.cluster import add_claim, fill
from tests.support.console.server import running_server
from tests.support.waiting import until
from tests.tools.console.support.odd_objects import DRIVER, GOOD, GPU, POOL, good, odd_objects

STEP = 5  # every fifth odd object: 1 finds all that 5 finds, and takes five minutes
DEVICE = {"node": "n1", "driver": DRIVER, "pool": POOL, "device": GPU}
CLAIM, POD = {"namespace": "team-a", "name": "held"}, {"namespace": "team-a", "name": "p"}
QUESTIONS = [
    {"ask": "summary"},
    {"ask": "attention"},
    {"ask": "fleet"},
    {"ask": "fleet", "state": "held", "namespace": "team-a", "labels": "team=a", "model": "h", "name": "n"},
    {"ask": "fleet", "expression": f'device.driver == "{DRIVER}"'},
    {"ask": "device", **DEVICE},
    {"ask": "claims"},
    {"ask": "claims", "name": "h", "namespace": "team-a"},
    {"ask": "claim", **CLAIM},
    {"ask": "explanation", "kind": "claim", **CLAIM},
    {"ask": "explanation", "kind": "pod", **POD},
    {"ask": "what-if", "picked": ["pod/team-a/p", "claim/team-a/held"], "drained": ["n1"]},
    {"ask": "selector", "expression": f'device.attributes["{DRIVER}"].type == "gpu"'},
    {"ask": "selector/explain", "expression": "true", **DEVICE},
    {"ask": "selector/completions", "before": "device."},
]


def page(kind, *objects):
    return PageRead(kind, json.dumps({"items": [trimmed(kind, one) for one in objects]}).encode(), True, True)


def filled():
    """Return a board with a good object of each kind, and the applier that filled it."""
    board, applier = Board.of_cluster("cluster"), UpdateApplier()
    for kind in GOOD:
        applier.apply(board, page(kind, good(kind)))
    return board, applier


def answer(board, question):
    """Answer a question as the worker does; a refusal is an answer too."""
    try:
        written(ANSWERS[question["ask"]](board, question))
    except DriverError:
        return


def test_the_good_objects_are_all_on_the_board_and_all_questions_about_them_are_answered():
    board, _ = filled()
    assert [board.count(kind) for kind in GOOD] == [1] * len(GOOD)
    assert not any(board.left_out.values())
    for question in QUESTIONS:
        written(ANSWERS[question["ask"]](board, question))


@pytest.mark.parametrize("kind", GOOD)
def test_an_odd_object_in_a_list_or_in_an_event_raises_nothing_and_is_left_out_and_counted_or_answered(kind):
    for what, wire in islice(odd_objects(kind), 0, None, STEP):
        board, applier = filled()
        try:
            applier.apply(board, ObjectChanged(kind, trimmed(kind, wire)))
            changed = board.left_out.get(kind, 0), board.count(kind)
            applier.apply(board, page(kind, wire))
            assert board.left_out.get(kind, 0) + board.count(kind) == 1, "neither shown nor counted"
            assert changed in {(0, 1), (1, 0), (1, 1), (0, 2)}
            for question in QUESTIONS if board.count(kind) else ():
                answer(board, question)
            applier.apply(board, ObjectChanged(kind, trimmed(kind, wire), is_gone=True))
        except Exception as fault:
            raise AssertionError(f"{what}: {fault!r}") from fault


@pytest.mark.parametrize("kind", ["ResourceClaim", "Pod"])
def test_an_odd_claim_or_pod_that_was_just_read_raises_nothing(kind):
    board, _ = filled()
    for what, wire in islice(odd_objects(kind), 0, None, STEP):
        claim, pods = (wire, [good("Pod")]) if kind == "ResourceClaim" else (good("ResourceClaim"), [wire])
        try:
            if isinstance(claim, dict):
                _users(claim)
            read = json.loads(json.dumps([trimmed("ResourceClaim", claim), [trimmed("Pod", pod) for pod in pods]]))
            answer(board, {"ask": "claim", **CLAIM, "read": read})
        except Exception as fault:
            raise AssertionError(f"{what}: {fault!r}") from fault


def test_an_object_that_becomes_good_or_is_gone_is_counted_no_longer():
    board, applier = filled()
    odd = {**good("Pod"), "spec": 7}
    applier.apply(board, ObjectChanged("Pod", odd))
    assert (board.count("Pod"), board.left_out["Pod"]) == (0, 1)
    assert "Pods without the shape of their kind are left out: 1" in ANSWERS["summary"](board, {})["notes"]
    applier.apply(board, ObjectChanged("Pod", good("Pod")))
    assert (board.count("Pod"), board.left_out["Pod"]) == (1, 0)
    applier.apply(board, ObjectChanged("Pod", odd))
    applier.apply(board, ObjectChanged("Pod", odd, is_gone=True))
    assert (board.count("Pod"), board.left_out["Pod"]) == (0, 0)


class OddApi(GuardedApi):
    """An API server whose lists of some kinds end with odd objects of the kind."""

    KINDS: ClassVar = {
        "nodes": "Node",
        "resourceslices": "ResourceSlice",
        "resourceclaims": "ResourceClaim",
        "pods": "Pod",
    }

    def _serve(self, request):
        answered = super()._serve(request)
        kind = self.KINDS.get(request.path.rpartition("/")[2])
        if request.method == "GET" and kind and isinstance(answered, Response) and answered.status == 200:
            found = json.loads(answered.body)
            for number, (_, wire) in enumerate(islice(odd_objects(kind), 0, None, 10 * STEP)):
                if isinstance(wire, dict) and isinstance(wire.get("metadata"), dict):
                    wire["metadata"].setdefault("name", f"odd-{number}")
                    found["items"].append(wire)
            return Response(200, json.dumps(found).encode())
        return answered


def test_a_cluster_full_of_odd_objects_is_shown_and_followed(tmp_path):
    with OddApi() as api:
        fill(api)
        api.add("admin-token", "admin", *((one, "") for one in EVERYTHING))
        kubeconfig = str(api.write_kubeconfig(tmp_path / "config"))
        with running_server(kubeconfig) as server, server.looked_at(authorization="Bearer admin-token"):
            until(lambda: {"mine", "theirs"} <= server.claims("admin-token"))
            until(lambda: len(server.ask("admin-token", "summary").json["notes"]) == len(OddApi.KINDS))
            add_claim(api, "team-a", "later")
            until(lambda: server.ask("admin-token", "claims", "?name=later").json["matching"] == 1)
            for name in ("attention", "fleet", "claims"):
                assert server.ask("admin-token", name).status == 200
