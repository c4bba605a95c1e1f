"""Any interleaving of prepare, unprepare, re-allocate, crash, restart and reboot leaves nothing behind, and no device
ever has two owners."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dra_driver.base.errors import ClaimError, PrepareError, Retry
from dra_driver.node.ledger.record import ClaimState
from tests.support.plugin.parts import Rig, claim_wire, inventory, result

DEVICES = ["gpu-0", "gpu-1", "gpu-2", "mig-0"]
UIDS = st.sampled_from(["u1", "u2", "u3"])
ALLOCATION = st.lists(st.sampled_from(DEVICES), min_size=1, max_size=3, unique=True)


class Kubelet(RuleBasedStateMachine):
    """Calls as a kubelet might send them, and faults as a node has them."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="plugin-"))
        self.rig = Rig(self.root)
        self.prepared: dict[str, tuple[tuple[str, ...], bool]] = {}  # devices, admin access

    def teardown(self) -> None:
        for uid in ("u1", "u2", "u3"):
            self.rig.unprepare(uid)
        self.rig.assert_empty()
        self.rig.close()
        shutil.rmtree(self.root, ignore_errors=True)  # a thread that is about to end may still look at the ledger

    @rule(uid=UIDS, devices=ALLOCATION, is_admin=st.booleans())
    def allocate(self, uid: str, devices: list[str], is_admin: bool) -> None:
        more = {"adminAccess": True} if is_admin else {}
        self.rig.api.put(claim_wire(uid, *(result(d, **more) for d in devices)))

    @rule(uid=UIDS)
    def delete(self, uid: str) -> None:
        self.rig.api.delete(uid)

    @rule(uid=UIDS)
    def prepare(self, uid: str) -> None:
        wire = self.rig.api.claims.get(("ns", f"claim-{uid}"))
        if wire is None:
            return
        results = wire["status"]["allocation"]["devices"]["results"]
        wanted = tuple(r["device"] for r in results)
        is_admin = bool(results[0].get("adminAccess"))
        taken = {d for u, (devices, admin) in self.prepared.items() if u != uid and not admin for d in devices}
        try:
            answer = self.rig.prepare(uid, 0.01)
        except ClaimError as error:
            if error.code != "claim.device-in-use" or is_admin:
                raise
            assert taken & set(wanted)
            if self.prepared.get(uid, (wanted, is_admin)) != (wanted, is_admin):
                self.prepared.pop(uid)  # undone, because it was re-allocated
            return
        assert tuple(d.device for d in answer) == wanted
        assert is_admin or not taken & set(wanted)
        self.prepared[uid] = (wanted, is_admin)

    @rule(uid=UIDS)
    def unprepare(self, uid: str) -> None:
        self.rig.unprepare(uid)
        self.prepared.pop(uid, None)

    @rule(uid=UIDS)
    def fail_to_prepare(self, uid: str) -> None:
        """The disk refuses the CDI file: a new claim is not prepared, a prepared one stays what it was."""
        if ("ns", f"claim-{uid}") not in self.rig.api.claims or uid in self.prepared:
            return
        store = self.rig.store

        def refuse(*_: object) -> None:
            raise PrepareError("cdi-write", "no space", retry=Retry.LATER)

        store._replace, keep = refuse, store._replace  # type: ignore[method-assign]
        try:
            self.rig.prepare(uid, 0.01)
            raise AssertionError("prepared without a file")
        except (PrepareError, ClaimError):
            pass
        finally:
            store._replace = keep  # type: ignore[method-assign]

    @rule(uid=UIDS)
    def crash_while_unpreparing(self, uid: str) -> None:
        if uid in self.prepared:
            self.rig.ledger.set_state(uid, ClaimState.UNPREPARING)
            del self.prepared[uid]
            self.restart()

    @rule()
    def restart(self) -> None:
        self.rig.ledger.close()
        self.rig.restart()
        self.rig.repair.run()

    @rule()
    def lose_the_ledger(self) -> None:
        """A recovered claim holds its devices until it is read from the API server, so all claims must still exist."""
        if any(admin for _, admin in self.prepared.values()):
            return
        if {u for u in self.prepared if ("ns", f"claim-{u}") not in self.rig.api.claims}:
            return
        self.rig.ledger.close()
        for path in self.rig.data.glob("ledger.db*"):
            path.unlink()
        self.rig.restart()

    @precondition(lambda self: self.prepared)
    @rule()
    def reload_the_driver(self) -> None:
        self.rig.hardware.major += 1
        self.rig.repair.refresh_cdi()

    @invariant()
    def every_device_has_one_owner(self) -> None:
        holders = self.rig.holders()
        assert len({device for device, _ in holders}) == len(holders)
        assert holders == {(d, uid) for uid, (ds, admin) in self.prepared.items() if not admin for d in ds}

    @invariant()
    def files_are_those_of_prepared_claims(self) -> None:
        assert set(self.rig.files()) == {self.rig.file_of(uid) for uid in self.prepared}
        assert set(self.rig.states()) == set(self.prepared)
        assert set(self.rig.states().values()) <= {"prepared", "recovered"}


Kubelet.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestInterleavings = Kubelet.TestCase
assert inventory().by_name.keys() >= set(DEVICES)
