"""Slots of a budget, as Leases of the embedded API server."""

import threading

import pytest

from dra_driver.base.errors import ApiError, Retry
from dra_driver.kube import leases
from dra_driver.kube.api import KubeApi
from dra_driver.kube.credentials import load_credentials
from dra_driver.kube.leases import LeaseSlots
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import LEASES

NAMES = ["slot-0", "slot-1", "slot-2"]


@pytest.fixture
def server():
    with EmbeddedApi() as embedded:
        for name in NAMES:
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            embedded.create({**lease, "metadata": {"name": name, "namespace": "default"}})
        yield embedded


@pytest.fixture
def slots(server, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "REQUEST_SECONDS", 60.0)  # a busy machine is no fault of the server

    def make(clock=lambda: 1000.0, client=KubeApi):
        api = client(load_credentials(str(server.write_kubeconfig(tmp_path / "config"))))
        return LeaseSlots(api, namespace="default", names=NAMES, period_s=600, clock=clock)

    return make


def holders(server):
    return sorted((one.get("spec") or {}).get("holderIdentity", "") for one in server.items(LEASES))


def test_as_many_holders_get_a_slot_as_there_are_slots_and_the_next_gets_the_time_to_wait(server, slots):
    assert [slots().acquire(f"n{number}") for number in range(3)] == [0.0, 0.0, 0.0]
    assert slots(lambda: 1200.0).acquire("n3") == 400.0
    assert slots(lambda: 1601.0).acquire("n3") == 0.0
    assert len(holders(server)) == 3
    assert "n3" in holders(server)


def test_a_holder_that_asks_again_keeps_its_slot_and_takes_no_other(server, slots):
    assert [slots().acquire("n0"), slots(lambda: 1300.0).acquire("n0")] == [0.0, 0.0]
    assert holders(server) == ["", "", "n0"]


@pytest.mark.parametrize("status", [403, 500])
def test_a_holder_that_cannot_read_the_lease_that_it_holds_waits_and_takes_no_other(server, slots, status):
    assert slots().acquire("n0") == 0.0
    held = next(one for one in server.items(LEASES) if (one.get("spec") or {}).get("holderIdentity") == "n0")
    server.faults.fail_next(status, count=100, method="GET", contains=f"/leases/{held['metadata']['name']}")
    with pytest.raises(ApiError, match=str(status)):
        slots().acquire("n0")
    assert holders(server) == ["", "", "n0"]


def test_a_holder_whose_lease_can_be_read_has_its_slot_although_another_lease_cannot(server, slots):
    assert slots().acquire("n0") == 0.0
    other = next(one for one in server.items(LEASES) if not (one.get("spec") or {}).get("holderIdentity"))
    server.faults.fail_next(403, count=100, method="GET", contains=f"/leases/{other['metadata']['name']}")
    assert slots().acquire("n0") == 0.0
    assert holders(server) == ["", "", "n0"]


def test_when_many_ask_at_once_no_more_get_a_slot_than_there_are_slots(server, slots):
    given = []

    takers = [slots() for _ in range(8)]

    def ask(number):
        taker = takers[number]
        while (wait := taker.acquire(f"n{number}")) == 1.0:
            pass
        given.append(wait)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert given.count(0.0) == 3
    assert len(given) == 8


@pytest.mark.parametrize("time", ["9999-01-01T00:00:00Z", "soon", None, 5])
def test_a_slot_whose_renew_time_is_wrong_counts_as_taken(server, slots, time):
    for name in NAMES:
        lease = server.request("GET", LEASES.path("default", name))
        spec = {"holderIdentity": "who", "renewTime": time}
        server.request("PUT", LEASES.path("default", name), body={**lease, "spec": spec})
    assert slots().acquire("n0") > 0


def test_missing_leases_are_created(server, slots):
    for name in NAMES:
        server.request("DELETE", LEASES.path("default", name))
    assert slots().acquire("n0") == 0.0
    assert holders(server) == ["n0"]


def test_an_api_server_that_refuses_gives_no_slot_and_says_why(server, slots):
    server.faults.fail_next(403, count=100, contains="/leases")
    with pytest.raises(ApiError, match="403") as caught:
        slots().acquire("n0")
    assert caught.value.code == "api.forbidden"
    assert "may get and update the Leases slot-0 to slot-2 in namespace default" in str(caught.value)


def test_a_slot_that_must_not_be_written_says_which_right_is_missing(server, slots):
    server.faults.fail_next(403, count=100, method="PUT", contains="/leases")
    with pytest.raises(ApiError, match="may get and update the Leases slot-0 to slot-2 in namespace default"):
        slots().acquire("n0")


class LosesFirstAnswer(KubeApi):
    """A client that does not get the answer to its first write, although the server carried it out."""

    lost = 0

    def request(self, method, path, **options):
        answer = super().request(method, path, **options)
        if method != "GET" and not self.lost:
            self.lost += 1
            raise self.loss(f"{method} {path}")
        return answer

    def loss(self, what):
        return ApiError("timeout", f"{what}: no answer in time", retry=Retry.NOW)


class LosesFirstAnswerInGateway(LosesFirstAnswer):
    def loss(self, what):
        return ApiError("unavailable", f"{what}: 504", status=504, retry=Retry.NOW)


@pytest.mark.parametrize("client", [LosesFirstAnswer, LosesFirstAnswerInGateway])
@pytest.mark.parametrize("is_missing", [False, True])
def test_a_holder_whose_write_was_not_answered_has_one_slot_and_not_two(server, slots, client, is_missing):
    for name in NAMES if is_missing else ():
        server.request("DELETE", LEASES.path("default", name))
    taker = slots(client=client)
    with pytest.raises(ApiError):
        taker.acquire("n0")
    assert taker.acquire("n0") == 0.0
    assert [one for one in holders(server) if one] == ["n0"]


def test_a_slot_that_must_not_be_written_leaves_the_others_to_be_taken(server, slots):
    server.faults.fail_next(403, count=2, method="PUT", contains="/leases")
    assert slots().acquire("n0") == 0.0
    assert [one for one in holders(server) if one] == ["n0"]


def test_a_slot_that_is_kept_ends_later_and_one_that_is_given_back_is_free_at_once(server, slots):
    assert slots().acquire("n0") == 0.0
    assert slots(lambda: 1500.0).renew("n0")
    assert slots(lambda: 2000.0).acquire("n0") == 0.0, "kept until 2100"
    for number in (1, 2):
        slots(lambda: 2000.0).acquire(f"n{number}")
    assert slots(lambda: 2000.0).acquire("n3") == 100.0
    slots(lambda: 2000.0).release("n0")
    assert slots(lambda: 2000.0).acquire("n3") == 0.0
    assert holders(server) == ["n1", "n2", "n3"]


def test_a_slot_that_has_expired_is_not_kept_and_no_longer_in_the_holders_name_when_it_is_given_back(server, slots):
    slots().acquire("n0")
    assert not slots(lambda: 5200.0).renew("n0"), "the clock was an hour behind when it was taken"
    assert "n0" in holders(server)
    slots(lambda: 5200.0).release("n0")
    assert "n0" not in holders(server)


def test_a_slot_that_another_holds_is_neither_kept_nor_given_back(server, slots):
    slots().acquire("n0")
    assert not slots().renew("n9")
    slots().release("n9")
    assert "n0" in holders(server)
