"""The last check that keeps MPS clients of two namespaces apart: before the first effect."""

from pathlib import Path

import pytest

from dra_driver.base.errors import ClaimError
from dra_driver.base.machine import Deadline
from dra_driver.base.wire import MpsSettings, Tenants
from tests.support.plugin.mig_parts import WHOLE
from tests.support.plugin.parts import claim_wire, result
from tests.support.plugin.sharing_parts import SharingRig, mps, replica


@pytest.fixture
def rig(tmp_path: Path):
    rig = SharingRig(tmp_path, MpsSettings(multi_user=True))
    yield rig
    rig.close()


def separate(rig: SharingRig, tenant: str) -> None:
    """Offer every share to one namespace from now on."""
    rig.tenant, rig.tenants = tenant, Tenants.NAMESPACE
    rig.scan()


def move(rig: SharingRig, uid: str, namespace: str) -> None:
    wire = rig.api.claims.pop(("ns", f"claim-{uid}"))
    wire["metadata"]["namespace"] = namespace
    rig.api.put(wire)


def prepare(rig: SharingRig, uid: str, namespace: str) -> None:
    rig.preparer.prepare(namespace, f"claim-{uid}", uid, Deadline.after(5))


def test_a_claim_of_another_namespace_is_refused_before_the_first_effect(rig: SharingRig) -> None:
    separate(rig, "team-a")
    rig.allocate("u1", replica(0))
    move(rig, "u1", "team-b")
    with pytest.raises(ClaimError, match="only in namespace team-a") as refused:
        prepare(rig, "u1", "team-b")
    assert refused.value.code == "claim.sharing-tenant"
    assert "delete the pods that use claim team-b/claim-u1" in refused.value.hint
    assert (rig.states(), rig.effects(), rig.supervisor.calls) == ({}, {}, [])
    rig.unprepare("u1")


def test_a_claim_of_the_namespace_is_prepared(rig: SharingRig) -> None:
    separate(rig, "ns")
    rig.allocate("u1", replica(0))
    rig.prepare("u1")
    assert rig.effects() == {WHOLE: ["u1"]}


def test_a_claim_that_was_prepared_before_the_separation_stays_and_no_claim_joins_it(rig: SharingRig) -> None:
    rig.allocate("u1", replica(0))
    rig.prepare("u1")
    separate(rig, "team-b")
    rig.prepare("u1")  # the kubelet asks again: the claim keeps what it has
    rig.repair.refresh_cdi()
    rig.allocate("u2", replica(1))
    move(rig, "u2", "team-b")
    with pytest.raises(ClaimError) as refused:
        prepare(rig, "u2", "team-b")
    assert refused.value.code == "claim.sharing-namespaces"
    assert "claim ns/claim-u1" in refused.value.message
    assert (rig.states(), rig.effects()) == ({"u1": "prepared"}, {WHOLE: ["u1"]})
    rig.unprepare("u1")
    prepare(rig, "u2", "team-b")


def test_after_a_reboot_a_claim_is_prepared_again_as_it_was(rig: SharingRig) -> None:
    rig.allocate("u1", replica(0))
    rig.prepare("u1")
    separate(rig, "team-b")
    rig.reboot()
    rig.prepare("u1")
    assert rig.states() == {"u1": "prepared"}


def test_a_device_class_cannot_ask_for_mps_on_shares_that_every_namespace_may_use(tmp_path: Path) -> None:
    rig = SharingRig(tmp_path)
    separate(rig, "")
    rig.allocate("u1", replica(0), configs=(mps(source="FromClass"),))
    with pytest.raises(ClaimError, match="is not offered to one namespace") as refused:
        rig.prepare("u1")
    assert refused.value.code == "claim.bad-config"
    assert rig.states() == {}
    rig.close()


def test_admin_access_to_a_share_of_another_namespace_joins_no_daemon(rig: SharingRig) -> None:
    separate(rig, "team-a")
    rig.api.put(claim_wire("u1", result(replica(0), adminAccess=True)))
    rig.prepare("u1")
    assert rig.supervisor.calls == []
