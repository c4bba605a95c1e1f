"""The plugin over real unix sockets, called as a kubelet calls: registration, both versions, errors, drain."""

import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from dra_driver.base import machine
from dra_driver.base.errors import ApiError, NodeError, Retry
from dra_driver.node.kubelet import registration as registration_module
from dra_driver.node.kubelet.server import PluginServer
from dra_driver.node.prepare import preparer
from tests.node.support.kubelet import FakeKubelet, claim
from tests.support.plugin.parts import DRIVER, Rig, claim_wire, in_thread, result
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import unhindered, until

UID = "0f9f7b1c-1111-2222-3333-444455556666"


class Served:
    """A rig with its sockets open, and a kubelet that calls them."""

    def __init__(self, root: Path) -> None:
        self.rig = Rig(root)
        self.answered: list[tuple[str, float, str]] = []
        self.kubelet = FakeKubelet(root / "registry")
        self.servers: list[PluginServer] = []
        self.unstarted: list[PluginServer] = []

    def start(self, pod_uid: str = "") -> PluginServer:
        server = PluginServer(
            driver=DRIVER,
            registrar_dir=self.rig.root / "registry",
            plugins_dir=self.rig.root / "plugins",
            pod_uid=pod_uid,
            preparer=self.rig.preparer,
            listener=SimpleNamespace(answered=lambda *values: self.answered.append(values)),
        )
        self.unstarted.append(server)
        server.start()
        self.servers.append(server)
        return server


@pytest.fixture
def served(short_path: Path) -> Iterator[Served]:
    served = Served(short_path)
    yield served
    for server in served.servers:
        server.stop(1.0)
    served.rig.close()


def test_registration_gives_the_kubelet_type_name_endpoint_and_versions(served: Served) -> None:
    server = served.start()
    assert not server.registered
    info = served.kubelet.register()
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert info.endpoint == str(served.rig.data / "dra.sock")
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    assert server.registered
    assert server.last_error == ""


@pytest.mark.parametrize("version", ["v1.DRAPlugin", "v1beta1.DRAPlugin"])
def test_both_versions_prepare_and_unprepare(served: Served, version: str) -> None:
    share = "11111111-2222-3333-4444-555555555555"
    served.rig.api.put(claim_wire("u1", result("gpu-0", "a/b"), result("gpu-1", "c", shareID=share)))
    served.start()
    served.kubelet.register()
    answer = served.kubelet.prepare(claim("u1"), version=version)["u1"]
    assert answer.error == ""
    assert [list(d.request_names) for d in answer.devices] == [["a"], ["c"]]
    assert answer.devices[0].cdi_device_ids == [f"k8s.{DRIVER}/claim=u1-gpu-0"]
    if version == "v1.DRAPlugin":
        assert [d.share_id for d in answer.devices] == ["", share]
        assert not answer.devices[0].HasField("share_id")
    assert served.kubelet.unprepare(claim("u1"), version=version)["u1"].error == ""
    served.rig.assert_empty()
    until(lambda: [(rpc, code) for rpc, _, code in served.answered] == [("prepare", "ok"), ("unprepare", "ok")])


def test_each_claim_of_a_call_gets_its_own_answer(served: Served) -> None:
    for uid, device in (("good", "gpu-0"), ("also", "gpu-1"), ("gone", "gpu-2")):
        served.rig.allocate(uid, device)
    served.rig.api.delete("gone")
    served.start()
    served.kubelet.register()
    answers = served.kubelet.prepare(claim("good"), claim("gone"), claim("also"), claim("../bad"), claim("good"))
    assert set(answers) == {"good", "gone", "also", "../bad"}
    assert {uid for uid, answer in answers.items() if not answer.error} == {"good", "also"}
    assert "claim.not-found" in answers["gone"].error
    assert "claim.bad-uid" in answers["../bad"].error
    answers = served.kubelet.unprepare(claim("good"), claim("gone"), claim("also"), claim("never"))
    assert {uid: answer.error for uid, answer in answers.items()} == dict.fromkeys(
        ("good", "gone", "also", "never"), ""
    )


def test_claims_of_one_call_are_prepared_at_the_same_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.rig.allocate("u1", "gpu-0")
    served.rig.allocate("u2", "gpu-1")
    both, good = threading.Barrier(2), served.rig.hardware.device_edits

    def edits(facts, partition):
        both.wait(30)  # breaks, which is an error, if one claim waits for the other to end
        return good(facts, partition)

    monkeypatch.setattr(served.rig.hardware, "device_edits", edits)
    served.start()
    served.kubelet.register()
    answers = served.kubelet.prepare(claim("u1"), claim("u2"))
    assert [answer.error for answer in answers.values()] == ["", ""]


def test_a_bug_becomes_the_error_of_its_claim(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.rig.allocate("u1", "gpu-0")
    served.rig.allocate("u2", "gpu-1")
    good = served.rig.hardware.device_edits

    def edits(facts, partition):
        if facts.minor == 0:
            raise ZeroDivisionError("oops")
        return good(facts, partition)

    monkeypatch.setattr(served.rig.hardware, "device_edits", edits)
    served.start()
    served.kubelet.register()
    answers = served.kubelet.prepare(claim("u1"), claim("u2"))
    assert "ZeroDivisionError: oops" in answers["u1"].error
    assert answers["u2"].error == ""


def test_an_answer_comes_before_the_callers_deadline(served: Served) -> None:
    served.rig.api.faults = [ApiError("unreachable", "no route", retry=Retry.NOW)] * 100
    served.start()
    served.kubelet.register()
    answer = served.kubelet.prepare(claim("u1"), seconds=5.0)["u1"]  # the answer has a second to travel back
    assert "no route" in answer.error


def test_sockets_and_folders_are_private(served: Served) -> None:
    server = served.start()
    for path in (server.paths.registration, server.paths.service):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) & 0o027 == 0


def test_two_instances_with_pod_uids_run_side_by_side(served: Served) -> None:
    served.rig.allocate("u1", "gpu-0")
    first = served.start(UID)
    second = served.start(UID[:-1] + "7")
    assert len(served.kubelet.sockets()) == 2
    served.kubelet.register(first.paths.registration)
    assert served.kubelet.prepare(claim("u1"))["u1"].error == ""
    served.kubelet.register(second.paths.registration)
    first.stop(1.0)
    assert served.kubelet.sockets() == [second.paths.registration]
    assert not first.paths.service.exists()
    assert served.kubelet.unprepare(claim("u1"))["u1"].error == ""
    served.rig.assert_empty()


def test_a_second_instance_without_a_pod_uid_is_refused_and_removes_nothing(served: Served) -> None:
    served.rig.allocate("u1", "gpu-0")
    served.start()
    with pytest.raises(NodeError, match="another process answers"):
        served.start()
    served.kubelet.register()
    assert served.kubelet.prepare(claim("u1"))["u1"].error == ""


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let calls wait for missing device nodes as long as they may, so that the tests decide when a call goes on."""
    monkeypatch.setattr(preparer, "NODE_SECONDS", 600.0)


def takes_calls(served: Served) -> bool:
    try:
        served.kubelet.prepare(claim("u1"), seconds=1)
    except grpc.RpcError as error:
        return error.code() is not grpc.StatusCode.UNAVAILABLE
    return True


@pytest.mark.usefixtures("_patient")
def test_an_instance_that_drains_leaves_the_socket_of_the_next_one_alone(served: Served) -> None:
    served.rig.allocate("u1", "gpu-0")
    served.rig.hardware.missing = {0}
    first = served.start()
    served.kubelet.register()
    call, _ = in_thread(served.kubelet.prepare, claim("u1"))
    until(lambda: served.rig.api.requests["get"])
    stop, _ = in_thread(first.stop, 20.0)
    until(lambda: not served.kubelet.sockets() and not first.paths.service.exists())
    served.start()
    served.rig.hardware.missing = set()
    call.join(60)
    stop.join(60)
    assert not stop.is_alive()
    assert first.paths.service.exists()
    assert served.kubelet.unprepare(claim("u1"))["u1"].error == ""


def test_a_removed_service_socket_is_noticed(served: Served) -> None:
    server = served.start()
    assert server.is_reachable
    server.paths.service.unlink()
    assert not server.is_reachable
    server.paths.service.touch()
    assert not server.is_reachable
    server.stop(1.0)
    assert server.paths.service.exists(), "not ours"


@pytest.mark.usefixtures("_patient")
def test_stop_removes_the_registration_first_and_lets_a_running_call_finish(served: Served) -> None:
    served.rig.allocate("u1", "gpu-0")
    served.rig.hardware.missing = {0}
    server = served.start()
    served.kubelet.register()
    call, answers = in_thread(served.kubelet.prepare, claim("u1"))
    until(lambda: served.rig.api.requests["get"])
    stop, _ = in_thread(server.stop, 20.0)
    until(lambda: not served.kubelet.sockets())
    assert call.is_alive()
    until(lambda: not takes_calls(served))
    served.rig.hardware.missing = set()
    call.join(60)
    stop.join(60)
    assert answers[0]["u1"].error == ""
    assert not server.paths.service.exists()


@pytest.mark.usefixtures("_patient")
def test_stop_ends_a_call_that_waits(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "KUBELET_SECONDS", 600.0)
    monkeypatch.setattr(machine, "BUDGET_SECONDS", 600.0)
    served.rig.allocate("u1", "gpu-0")
    served.rig.hardware.missing = {0}
    server = served.start()
    served.kubelet.register()
    call, answers = in_thread(lambda: served.kubelet.prepare(claim("u1"), seconds=600))
    until(lambda: served.rig.api.requests["get"])
    unhindered(lambda: server.stop(2.0))
    call.join(60)
    assert not call.is_alive()
    assert "hardware.node-missing" in answers[0]["u1"].error


def test_a_removed_registration_socket_is_noticed(served: Served) -> None:
    server = served.start()
    served.kubelet.register()
    assert server.is_reachable
    server.paths.registration.unlink()
    assert not server.is_reachable
    server.paths.registration.touch()
    assert not server.is_reachable
    server.stop(1.0)
    assert server.paths.registration.exists(), "not ours"


def test_the_registration_socket_answers_only_after_the_service_has_started(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound, asked = threading.Event(), threading.Event()
    bind = registration_module.Registration.bind

    def bind_and_wait(registration: registration_module.Registration, server: grpc.Server) -> None:
        bind(registration, server)
        bound.set()
        asked.wait(60)

    monkeypatch.setattr(registration_module.Registration, "bind", bind_and_wait)
    start, _ = in_thread(served.start)
    assert bound.wait(60)
    register, answers = in_thread(served.kubelet.register)
    assert not answers, "not before the server has started"
    asked.set()
    register.join(60)
    start.join(60)
    assert answers[0].name == DRIVER
    assert served.kubelet.unprepare(claim("u1"))["u1"].error == ""


def test_a_refused_registration_is_tried_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_module, "RETRY_FIRST_SECONDS", 0.05)
    server = served.start()
    before = server.paths.registration.stat().st_ctime_ns
    served.kubelet.register(error="no room")
    assert not server.registered
    assert server.last_error == "no room"

    def is_offered_again() -> bool:
        return server.paths.registration.exists() and server.paths.registration.stat().st_ctime_ns != before

    until(is_offered_again)
    until(lambda: [p.name for p in server.paths.registration.parent.iterdir()] == [f"{DRIVER}-reg.sock"])
    assert server.is_reachable
    served.kubelet.register()
    assert server.registered
    assert server.last_error == ""


@pytest.mark.usefixtures("_patient")
def test_claims_of_a_call_do_not_wait_for_the_claims_before_them(served: Served) -> None:
    from tests.support.plugin.parts import inventory

    served.rig.inventory = inventory(45)
    uids = [served.rig.allocate(f"u{number}", f"gpu-{number}") for number in range(45)]
    served.rig.hardware.missing = set(range(40))
    served.start()
    served.kubelet.register()
    call, _ = in_thread(served.kubelet.prepare, *map(claim, uids))
    until(lambda: set(served.rig.states()) == {f"u{number}" for number in range(40, 45)})
    assert call.is_alive()
    served.rig.hardware.missing = set()
    call.join(60)
    assert len(served.rig.states()) == 45


def test_many_claims_at_once_are_all_prepared(served: Served) -> None:
    from tests.support.plugin.parts import inventory

    served.rig.inventory = inventory(64)
    served.start()
    served.kubelet.register()
    calls = []
    for number in range(64):
        served.rig.allocate(f"u{number}", f"gpu-{number}")
        calls.append(in_thread(served.kubelet.prepare, claim(f"u{number}")))
    for thread, _ in calls:
        thread.join(60)
    assert [answers[0][f"u{n}"].error for n, (_, answers) in enumerate(calls)] == [""] * 64
    assert len(served.rig.files()) == 64


def test_claims_of_one_call_are_prepared_one_after_the_other_without_further_threads(served: Served) -> None:
    uids = [served.rig.allocate(f"u{number}", f"gpu-{number}") for number in range(3)]
    server = served.start()
    served.kubelet.register()
    with no_thread_starts("prepare"):
        for _ in range(3):  # what no thread was started for has to be forgotten
            answers = served.kubelet.prepare(*map(claim, uids))
            assert {uid: answer.error for uid, answer in answers.items()} == dict.fromkeys(uids, "")
    assert {one.error for one in served.kubelet.prepare(*map(claim, uids)).values()} == {""}
    assert {one.error for one in served.kubelet.unprepare(*map(claim, uids)).values()} == {""}
    until(lambda: all(pool._work_queue.empty() for pool in server._pools))
    served.rig.assert_empty()


def test_a_plugin_without_a_thread_does_not_start_and_leaves_no_socket(served: Served) -> None:
    for name in ("registration_0", "prepare_0", "unprepare_0"):
        with no_thread_starts(name), pytest.raises(NodeError, match=f"{name} can't be started"):
            served.start()
        served.unstarted[-1].stop(1.0)
        assert not list((served.rig.root / "registry").iterdir())
        assert not list(served.rig.data.glob("*sock*"))
    served.start()
    assert served.kubelet.register().name == DRIVER


def test_a_plugin_that_can_t_offer_a_refused_registration_again_is_not_reachable(served: Served) -> None:
    server = served.start()
    with no_thread_starts("Thread"):  # a timer gets its own name after its construction
        served.kubelet.register()
    assert server.is_reachable
    with no_thread_starts("registration"):
        served.kubelet.register(error="no room")
    assert not server.is_reachable, "only a new process makes the kubelet ask again"
    assert "registration can't be started" in server.last_error
