"""The agent's sharing rules, which follow their file, the node's labels and what claims hold."""

import subprocess
import sys

import pytest

from dra_driver.base.errors import ApiError, InputError, NodeError
from dra_driver.node.daemon.offer import SETTLE_SECONDS, CurrentSharingRules
from dra_driver.node.devices.partitions import Ownership
from dra_driver.node.devices.rules import NOTHING_SHARED

FOUR = "version: rules/v1\nrules: [{replicas: 4}]\n"
LABELS = "version: rules/v1\nrules: [{match: {nodeLabels: {pool: a}}, replicas: 4}]\n"


class Node:
    """The API's answer about the node."""

    def __init__(self):
        self.labels, self.asked, self.is_away = {}, 0, False

    def get_node(self, name):
        self.asked += 1
        if self.is_away:
            raise ApiError("unreachable", "no answer")
        return {"metadata": {"name": name, "labels": self.labels}}


class World:
    """A file, an API, claims and a clock."""

    def __init__(self, tmp_path):
        self.path, self.node = tmp_path / "sharing.yaml", Node()
        self.now, self.looks = 100.0, 0
        self.allocated, self.refusal = frozenset(), None

    def write(self, text):
        self.path.with_suffix(".new").write_text(text)
        self.path.with_suffix(".new").replace(self.path)

    def sharing(self, text=FOUR):
        self.write(text)
        return CurrentSharingRules(self.path, "node", api=self.node, allocated=self, clock=lambda: self.now)

    def forms(self):
        self.looks += 1
        if self.refusal:
            raise self.refusal
        return self.allocated


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_without_a_file_nothing_is_shared_and_no_request_is_made(world):
    sharing = CurrentSharingRules(None, "node", api=world.node, allocated=world)
    assert sharing.read() is NOTHING_SHARED
    assert sharing.with_allocated(Ownership()) == Ownership()
    assert (sharing.fingerprint(), world.looks, world.node.asked) == (None, 0, 0)


def test_a_file_that_is_invalid_at_the_start_is_refused(world):
    with pytest.raises(InputError, match="line 2: rules"):
        world.sharing("version: rules/v1\nrules: [{}]\n")


def test_a_file_that_changes_is_read_again(world):
    sharing = world.sharing()
    before = sharing.fingerprint()
    assert sharing.read().rules[0].replicas == 4
    world.write(FOUR.replace("4", "7"))
    assert sharing.fingerprint() != before
    assert sharing.read().rules[0].replicas == 7


def test_an_invalid_change_of_the_file_leaves_the_rules_in_force_and_is_a_problem_until_corrected(world, caplog):
    sharing = world.sharing()
    for text in ("version: rules/v1\nrules: [{}]\n", "[", None):
        if text is None:
            world.path.unlink()
        else:
            world.write(text)
        assert sharing.read().rules[0].replicas == 4
        (problem,) = sharing.problems
        assert problem.code == "sharing.config"
    logged = len(caplog.records)
    sharing.read()
    assert len(caplog.records) == logged, "logged more than once for one change"
    world.write(FOUR)
    sharing.read()
    assert sharing.problems == ()


def test_labels_are_read_only_where_a_rule_names_some(world):
    world.sharing().read()
    assert world.node.asked == 0
    world.node.labels = {"pool": "a"}
    assert world.sharing(LABELS).read().labels == {"pool": "a"}


def test_rules_need_the_labels_once_and_keep_the_known_ones_while_the_server_does_not_answer(world):
    sharing = world.sharing(LABELS)
    world.node.is_away = True
    with pytest.raises(ApiError):
        sharing.read()
    world.node.is_away, world.node.labels = False, {"pool": "a"}
    assert sharing.read().labels == {"pool": "a"}
    world.node.is_away = True
    assert sharing.read().labels == {"pool": "a"}


def test_devices_allocated_when_the_rules_were_new_count_as_held_for_a_while(world):
    sharing = world.sharing()
    world.allocated = frozenset({("gpu-a", False), ("gpu-b", True)})
    sharing.read()
    known = sharing.with_allocated(Ownership(forms=frozenset({("gpu-c", False)})))
    assert known.forms == {("gpu-a", False), ("gpu-b", True), ("gpu-c", False)}
    world.now += SETTLE_SECONDS / 2
    assert sharing.with_allocated(Ownership()).forms == world.allocated
    world.now += SETTLE_SECONDS
    assert sharing.with_allocated(Ownership()) == Ownership()
    assert world.looks == 1
    world.write(FOUR.replace("4", "5"))
    sharing.read()
    sharing.with_allocated(Ownership())
    assert world.looks == 2, "what is allocated was not read again for the new rules"


def test_new_rules_wait_until_it_is_known_what_claims_hold(world):
    sharing = world.sharing()
    sharing.read()
    for refusal in (NodeError("pod-resources", "no answer"), ApiError("unreachable", "no answer")):
        world.refusal = refusal
        with pytest.raises(type(refusal)):
            sharing.with_allocated(Ownership())
    world.refusal = None
    assert sharing.with_allocated(Ownership()) == Ownership()


def test_a_device_that_was_in_the_ledger_is_free_once_the_ledger_has_released_it(world):
    sharing = world.sharing()
    world.allocated = frozenset({("gpu-a", False), ("gpu-b", False)})
    sharing.read()
    in_ledger = Ownership(forms=frozenset({("gpu-a", False)}))
    assert sharing.with_allocated(in_ledger).forms == world.allocated
    assert sharing.with_allocated(Ownership()).forms == {("gpu-b", False)}


def test_parts_of_the_device_plugins_file_without_effect_are_logged(world, caplog):
    world.sharing(
        "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 2}]}}"
    )
    assert "part of the sharing configuration has no effect" in caplog.messages


def test_an_invalid_file_ends_the_agent_with_status_3_and_lists_every_fault(tmp_path):
    config = tmp_path / "sharing.yaml"
    config.write_text("version: rules/v1\nrules:\n  - replicas: 1\n  - compute: {}\n")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: t}}]\n"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "dra_driver", "agent", "--node-name", "node", "--hardware", "simulated:demo-h100"),
            *("--sharing-config", str(config), "--kubeconfig", str(kubeconfig)),
            *("--kubelet-plugins-directory-path", str(tmp_path / "plugins")),
            *("--kubelet-registrar-directory-path", str(tmp_path / "registry"), "--cdi-root", str(tmp_path / "cdi")),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "line 3: rules[0].replicas" in done.stderr
    assert "line 4: rules[1].compute.default" in done.stderr


def test_an_agent_without_files_imports_neither_yaml_nor_pydantic():
    code = (
        "import sys, dra_driver.node.daemon.node, dra_driver.node.daemon.offer, dra_driver.node.daemon.node_health\n"
        "import dra_driver.node.daemon.passthrough, dra_driver.node.prepare.steps.declared_mig\n"
        "import dra_driver.node.daemon.node_remediation\n"
        "print([name for name in ('yaml', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
