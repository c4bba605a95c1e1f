"""Each finding from the evidence that shows it, and none from a healthy cluster and node. Pure."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dra_driver.base.errors import ExitCode, UsageError
from dra_driver.hardware.facts import Facts, Problem
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.health.cordons import Cordon
from dra_driver.node.kubelet.registration import RegisteredPlugin
from dra_driver.tools.doctor.command import examine
from dra_driver.tools.doctor.evidence import NodeFaults, RuntimeConfig
from dra_driver.tools.doctor.finding import CATALOGUE, Severity
from dra_driver.tools.doctor.node_evidence import PluginSocket
from dra_driver.tools.doctor.version_checks import older_release
from dra_driver.tools.main import run
from tests.tools.doctor.support import evidence as e
from tests.tools.doctor.support.cluster_faults import (
    ASKS,
    CLUSTERS,
    EXPORTER,
    FAULTY,
    JUST_NOW,
    LONG_AGO,
    METERING_AGENT,
    tainted,
)
from tests.tools.doctor.support.node_faults import NODES

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def found(cluster=None, node=None):
    return {one.id: one for one in examine(cluster, node, NOW).findings}


def test_a_healthy_cluster_and_node_have_no_finding():
    claims = [e.claim_of("c", "gpu-0000-01-00-0", pod="p")]
    cluster = e.cluster(claims=claims, pods=[e.pod_of("p", claim="c")])
    report = examine(cluster, e.node(), NOW)
    assert report.findings == ()
    assert report.is_clean


@pytest.mark.parametrize("code", CLUSTERS)
def test_a_fault_of_the_cluster_is_found(code):
    findings = found(CLUSTERS[code])
    assert set(findings) == {code}
    assert all((findings[code].message, findings[code].how, findings[code].remedy))


def renamed(kind):
    """Return a device of a GPU that has the same name on each node, with another type."""
    return {**e.DEVICES[0], "attributes": {**e.DEVICES[0]["attributes"], "type": {"string": kind}}}


def test_a_class_is_judged_by_the_devices_of_all_nodes_even_if_they_have_equal_names():
    """Machines of one model give their devices the same names; the last node does not hide the others."""
    slices = [e.slice_of([renamed("first")]), e.slice_of([renamed("last")], "s2", "n2")]
    nodes = [e.node_wire(), e.node_wire("n2")]
    classes = [
        e.class_of(f"{kind}.gpu.nvidia.com", f'device.attributes["{e.DRIVER}"].type == "{kind}"')
        for kind in ("first", "last")
    ]
    claims = [e.claim_of(kind, devices=e.request(f"{kind}.gpu.nvidia.com")) for kind in ("first", "last")]
    assert not found(e.cluster(slices=slices, nodes=nodes, classes=classes, claims=claims))


def test_a_selector_that_fails_on_one_of_several_devices_with_equal_names_names_its_pool():
    broken = {**e.DEVICES[0], "attributes": {}}
    slices = [e.slice_of([broken]), e.slice_of(e.DEVICES, "s2", "n2")]
    expression = f'device.attributes["{e.DRIVER}"].type == "gpu"'
    classes = [e.class_of("gpu.nvidia.com", expression)]
    findings = found(e.cluster(slices=slices, nodes=[e.node_wire(), e.node_wire("n2")], classes=classes))
    assert f"fails on {e.DRIVER} device {e.POOL}/gpu-0000-01-00-0" in findings["class-broken"].message


def test_a_share_for_one_namespace_is_not_hidden_by_a_device_of_its_name_on_another_node():
    own = {**e.DEVICES[0], "attributes": {**e.DEVICES[0]["attributes"], "tenant": {"string": "team-a"}}}
    slices = [e.slice_of([own]), e.slice_of([e.DEVICES[0]], "s2", "n2")]
    findings = found(e.cluster(slices=slices, nodes=[e.node_wire(), e.node_wire("n2")]))
    assert "shares for team-a only" in findings["tenants-class"].message


@pytest.mark.parametrize("code", CLUSTERS)
def test_a_command_that_a_remedy_names_exists_with_its_options(code):
    remedies = [one.remedy for one in examine(CLUSTERS[code], None, NOW).findings]
    for remedy in remedies:
        for words in re.findall(r"dra-driver ((?:cel|explain|doctor|slices|claims|simulate)[^`;,]*)", remedy):
            args = words.removesuffix(" shows why").partition(" on ")[0].partition(" there")[0].split()
            assert run([*args, "--help"]) == ExitCode.OK, remedy


def test_the_remedy_for_a_faulty_device_in_use_is_a_rule_that_counts_its_pods_and_deletes_none():
    faulty = e.cluster(
        slices=[tainted(FAULTY)], claims=[e.claim_of("c", "gpu-0000-01-00-0", pod="p")], pods=[e.pod_of("p")]
    )
    one = found(faulty)["health-tainted"]
    assert "needs-reset=gpu-reset:NoSchedule since 2026-11-21T11:50:00Z; claims hold gpu-0000-01-00-0" in one.message
    rule = json.loads(one.remedy.partition("<<< '")[2].rstrip("'"))
    assert one.message.endswith("gpu-0000-01-00-0, used by pod team/p")
    assert one.remedy.startswith("end team/p, which get other devices")
    assert (rule["apiVersion"], rule["spec"]["taint"]["effect"]) == ("resource.k8s.io/v1alpha3", "None")
    assert rule["spec"]["deviceSelector"] == {"driver": e.DRIVER, "pool": e.POOL, "device": "gpu-0000-01-00-0"}
    newer = replace(faulty, rules_api="v1")
    assert '"resource.k8s.io/v1"' in found(newer)["health-tainted"].remedy
    without = replace(faulty, rules_api="")
    assert "DeviceTaintRule" not in found(without)["health-tainted"].remedy
    deadly = e.cluster(slices=[tainted({**FAULTY, "effect": "NoExecute"})], claims=faulty.of("claims"))
    assert "PodDisruptionBudget" in found(deadly)["health-tainted"].message
    assert "PodDisruptionBudget" not in one.message


def test_the_taints_of_the_parts_of_a_gpu_are_one_finding_about_the_gpu():
    gpu = e.DEVICES[0]["name"]
    parts = [{**e.DEVICES[0], "name": f"{gpu}-mig-1g10gb-{place}", "taints": [FAULTY]} for place in range(7)]
    one = found(e.cluster(slices=[e.slice_of([*parts, *e.DEVICES[1:]])]))["health-tainted"]
    assert one.subject == f"{e.POOL}: {gpu} (7 devices)"


def test_a_cordon_of_this_node_is_a_note_with_its_reason_and_end():
    held = Cordon("gpu-0000-01-00-0", "fan noise", since=0.0, until=3600.0)
    report = examine(None, e.node(health=NodeFaults(cordons=(held,))), NOW)
    (one,) = report.findings
    assert one.message == "cordoned since 1970-01-01T00:00:00Z until 1970-01-01T01:00:00Z: fan noise"
    assert report.is_clean


def test_a_reference_that_is_missing_is_named_with_the_nearest_one():
    assert "did you mean one-gpu?" in found(CLUSTERS["pod-reference-missing"])["pod-reference-missing"].remedy


def test_a_resource_of_a_class_is_unserved_while_the_gate_is_off():
    classes = [e.wire("gpus", spec={"extendedResourceName": "nvidia.com/gpu"})]
    pods = [e.wire("p", "team", ASKS, {"phase": "Pending"})]
    assert "pod-resource-unserved" not in found(e.cluster(classes=classes, pods=pods))
    off = replace(e.cluster(classes=classes, pods=pods), kept={"DRAExtendedResource": False})
    assert "gate DRAExtendedResource is off" in found(off)["pod-resource-unserved"].message


@pytest.mark.parametrize("code", NODES)
def test_a_fault_of_the_node_is_found(code):
    also = {"driver-bad-version": {"hardware-mig-mode"}, "driver-in-use": {"driver-version-skew"}}
    assert set(found(None, e.node(**NODES[code]))) == {code} | also.get(code, set())


def test_a_device_plugin_beside_this_driver_is_found_in_the_cluster():
    offers = {**e.node_wire(), "status": {"allocatable": {"nvidia.com/gpu": "2", "nvidia.com/mig-1g.10gb": "0"}}}
    finding = found(e.cluster(nodes=[offers]))["node-device-plugin"]
    assert "nvidia.com/gpu: 2, beside slices" in finding.message
    label = {"nvidia.com/gpu.present": "true"}
    elsewhere = {**e.node_wire("n2", **label), "status": offers["status"]}
    assert not found(e.cluster(nodes=[e.node_wire(), elsewhere]))
    labels = {"app.kubernetes.io/name": "dra-driver"}
    agent = e.wire("a", "dra", {"nodeName": "n2"}, {"phase": "Succeeded"}, labels=labels)
    assert set(found(e.cluster(nodes=[e.node_wire(), elsewhere], pods=[agent]))) == {"node-device-plugin"}


@pytest.mark.parametrize("label", ["pci-10de.present", "pci-0302_10de.present", "pci-0300_10de.present"])
def test_a_node_with_gpus_is_known_by_its_labels(label):
    two = e.node_wire("n2", **{f"feature.node.kubernetes.io/{label}": "true"})
    assert set(found(e.cluster(nodes=[e.node_wire(), two]))) == {"slices-node-missing"}
    card = e.node_wire("n2", **{"feature.node.kubernetes.io/pci-0200_10de.present": "true"})
    assert set(found(e.cluster(nodes=[e.node_wire(), card]))) == {"node-untainted"}


def test_pods_without_a_gpu_on_a_gpu_node_are_named_and_a_taint_is_enough():
    def bound(name, *, node="n1", owner="ReplicaSet", **spec):
        made = e.wire(name, "team", {"nodeName": node, "containers": [{"name": "main"}], **spec}, {"phase": "Running"})
        made["metadata"]["ownerReferences"] = [{"kind": owner, "controller": True}]
        return made

    asking = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    pods = [
        bound("web"),
        bound("claims", resourceClaims=[{"name": "gpu", "resourceClaimName": "c"}]),
        bound("plugin", containers=asking),
        bound("agent", owner="DaemonSet"),
        bound("static", owner="Node"),
        bound("elsewhere", node="n2"),
    ]
    nodes = [e.node_wire(), e.node_wire("n2")]
    finding = found(e.cluster(nodes=nodes, pods=pods))["node-untainted"]
    assert finding.subject == "node n1"
    assert finding.message.endswith("; pods without a GPU run there: team/web")
    assert finding.remedy.startswith("kubectl taint nodes n1 ")
    nodes[0]["spec"] = {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
    assert "node-untainted" not in found(e.cluster(nodes=nodes, pods=pods))


def test_findings_about_waiting_pods_quote_scheduler_and_kubelet():
    waits = e.pod_of("p", "Pending", node="", claim="c")
    words = "0/1 nodes are available: 1 cannot allocate all claims."
    waits["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": words}]
    assert words in found(e.cluster(pods=[waits]))["claim-waits"].message
    pods = [e.pod_of("p", "Pending", claim="c", since=LONG_AGO)]
    event = {**e.wire("x", "team"), "involvedObject": {"uid": "uid-p"}, "message": "bad\nconfig [claim.bad-config]"}
    cluster = e.cluster(claims=[e.claim_of("c", "gpu-0000-01-00-0", pod="p")], pods=pods, events=[event])
    assert found(cluster)["claim-not-prepared"].message.endswith(": bad config [claim.bad-config]")


def test_a_pod_that_has_just_ended_gives_no_finding():
    pod = e.pod_of("p", "Succeeded")
    pod["status"]["containerStatuses"] = [{"name": "a", "state": {"terminated": {"finishedAt": JUST_NOW}}}]
    claims = [e.claim_of("c", "gpu-0000-01-00-0", pod="p")]
    assert not found(e.cluster(claims=claims, pods=[pod]))
    pod["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = LONG_AGO
    assert set(found(e.cluster(claims=claims, pods=[pod]))) == {"claim-finished-pod"}


def test_a_report_lists_as_looked_at_only_what_was_seen():
    partial = examine(replace(e.cluster(), objects={}, kept={}), e.node(sockets=None, rows=None, facts=None), NOW)
    assert partial.looked_at == ("Kubernetes", "kernel driver", "container runtime")
    whole = examine(e.cluster(), e.node(), NOW).looked_at
    assert {"gates", "claims", "access", "hardware", "registration", "ledger and CDI files"} <= set(whole)


def test_the_version_of_containerd_decides_where_its_file_does_not_say():
    silent = e.node(runtimes=(RuntimeConfig("containerd", "/f", None, ("/run/cdi",)),), rows=(), cdi_uids=frozenset())
    assert not found(e.cluster(), silent)
    old = e.cluster(nodes=[e.node_wire(runtime="containerd://1.7.20")])
    assert "runtime-cdi-off" in found(old, silent)
    assert set(found(None, silent)) == {"runtime-cdi-unknown"}


@pytest.mark.parametrize("setting", [("TELEMETRY", "off"), ("DCGM_NAMES", "false"), ("METRICS_ADDRESS", "")])
def test_an_exporter_alone_is_no_second_source(setting):
    agent = copy.deepcopy(METERING_AGENT)
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    container["env"].append({"name": setting[0], "value": setting[1]})
    assert "metrics-twice" not in found(e.cluster(daemonsets=[agent, EXPORTER]))


def test_a_rollout_is_no_fault_and_a_new_pod_that_fails_is():
    meta = {"labels": {"app.kubernetes.io/name": "dra-driver"}, "creationTimestamp": JUST_NOW}
    assert not found(e.cluster(pods=[e.wire("a", "dra", **meta)]))
    failed = {"containerStatuses": [{"restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}
    [finding] = examine(e.cluster(pods=[e.wire("a", "dra", {}, failed, **meta)]), None, NOW).findings
    assert (finding.id, "CrashLoopBackOff" in finding.message) == ("agent-not-ready", True)
    assert found(e.cluster(pods=[e.wire("a", "dra", **{**meta, "creationTimestamp": LONG_AGO})]))


def test_a_gpu_that_the_library_answers_for_has_a_driver_whatever_sysfs_shows():
    unbound = replace(e.node().kernel, bound={gpu.pci_address: None for gpu in e.GPUS}, sources=("nvidia-580",))
    assert found(node=e.node(kernel=unbound)) == {}
    one_answers = replace(e.FACTS, gpus=e.GPUS[:1])
    report = examine(None, e.node(kernel=unbound, facts=one_answers), NOW).findings
    silent = f"GPU {e.GPUS[1].pci_address}"
    assert [one.subject for one in report if one.id == "driver-not-loaded"] == [silent]


@pytest.mark.parametrize("vendor", ["nvidia", "amd", "intel"])
def test_while_virtual_machines_have_every_gpu_there_is_no_other_finding(vendor):
    facts = Facts(vendor=vendor, waiting_for="the driver", problems=(Problem("hardware.no-device", "node", "none"),))
    bound = dict.fromkeys(("0000:01:00.0", "0000:02:00.0"), "vfio-pci")
    node = e.node(
        vendor=vendor, kernel=replace(e.node().kernel, bound=bound), facts=facts, inventory=build_inventory(facts)
    )
    subjects = [
        (one.id, one.subject) for one in examine(None, node, NOW).findings if one.id.startswith(("driver", "hardw"))
    ]
    assert subjects == [("driver-vfio", f"GPU {address}") for address in bound]


def test_missing_headers_are_found_only_where_a_driver_is_to_be_built():
    kernel = replace(e.node().kernel, bound={"0000:09:00.0": None})
    assert "driver-no-headers" not in found(None, e.node(kernel=kernel))
    built = replace(kernel, sources=("nvidia-580.95.05",))
    assert "6.12.1" in found(None, e.node(kernel=built))["driver-no-headers"].subject


def test_slices_that_differ_from_the_hardware_are_found_device_by_device():
    one, two = (dict(device) for device in e.cluster().of("slices")[0]["spec"]["devices"])
    renamed = {**two, "attributes": {**two["attributes"], "productName": {"string": "A100"}}}
    gone = {"name": "gpu-x", "attributes": {"resource.kubernetes.io/pciBusID": {"string": "0000:77:00.0"}}}
    cluster = e.cluster(slices=[e.slice_of([renamed, gone])])
    report = examine(cluster, e.node(rows=()), NOW)
    differing = {one.subject: one.message for one in report.findings if one.id == "slices-differ"}
    assert differing == {
        one["name"]: "is here, but not published",
        two["name"]: "differs in productName",
        "gpu-x": "is published, but its GPU is not here",
    }


def test_a_gpu_that_is_offered_in_shares_is_published():
    devices = [
        {"name": f"share-{i}", "attributes": {"parentUUID": {"string": gpu.uuid}, "type": {"string": "gpu-share"}}}
        for i, gpu in enumerate(e.GPUS)
    ]
    assert "slices-differ" not in found(e.cluster(slices=[e.slice_of(devices)]), e.node(rows=(), cdi_uids=frozenset()))


def test_a_claim_that_is_gone_but_prepared_is_found_in_the_ledger():
    assert set(found(e.cluster(), e.node())) == {"claim-gone"}


def test_a_pod_that_was_just_scheduled_gives_no_finding():
    pods = [e.pod_of("p", "Pending", claim="c", since=JUST_NOW)]
    assert not found(e.cluster(claims=[e.claim_of("c", "gpu-0000-01-00-0", pod="p")], pods=pods))


def test_two_instances_of_ours_during_an_upgrade_are_no_second_driver():
    other = RegisteredPlugin("DRAPlugin", e.DRIVER, f"/k/plugins/{e.DRIVER}/dra-2.sock", is_marked=True)
    assert not found(None, e.node(sockets=(*(e.node().sockets or ()), PluginSocket("/k/2.sock", other))))


def test_evidence_that_may_not_be_read_gives_no_finding():
    unreadable = replace(e.cluster(), objects={})
    assert not found(unreadable)
    assert not found(None, e.node(sockets=None, rows=None, cdi_uids=None, facts=None, inventory=None))


def test_the_folders_run_and_var_run_are_taken_for_the_same():
    runtime = RuntimeConfig("containerd", "/f", True, ("/run/cdi/",))
    assert not found(None, e.node(runtimes=(runtime,)))


def test_every_finding_of_the_catalogue_is_shown_by_a_test_here():
    shown = {
        *CLUSTERS,
        *BACK,
        *NODES,
        "driver-no-headers",
        "slices-differ",
        "claim-gone",
        "hardware-mig-mode",
        "fabric-not-ready",
    }
    assert set(CATALOGUE) - shown == {"kubernetes-no-resource-api"}  # tests/tools/doctor/test_evidence.py


def test_findings_come_worst_first_and_notes_alone_are_clean():
    report = examine(replace(e.cluster(slices=[]), kept={"DRADeviceTaints": False}), None, NOW)
    assert [one.severity for one in report.findings] == [Severity.ERROR, Severity.NOTE]
    assert examine(replace(e.cluster(), kept={"DRADeviceTaints": False}), None, NOW).is_clean


def test_every_page_exists():
    docs = Path(__file__).resolve().parents[3] / "docs"
    assert all((docs / kind.page).is_file() for kind in CATALOGUE.values())


BACK = {"downgrade-claim", "downgrade-health"}
AMD = "gpu.amd.com"
BACK_TO = older_release("0.1.1")


def before_downgrade(cluster, node):
    report = examine(cluster, node, NOW, back_to=BACK_TO)
    return {one.id: one for one in report.findings if one.id in BACK}


def test_nothing_prevents_the_downgrade_of_a_healthy_node_with_claims():
    assert before_downgrade(e.cluster(), e.node()) == {}


def test_a_claim_that_the_older_release_does_not_serve_is_named():
    claim = e.claim_of("c", "gpu-1", pod="p")
    claim["status"]["allocation"]["devices"]["results"][0]["driver"] = AMD
    cluster = replace(e.cluster(claims=[claim], pods=[e.pod_of("p")]), driver=AMD)
    finding = before_downgrade(cluster, None)["downgrade-claim"]
    assert (finding.subject, "gpu.amd.com, which 0.1.1 does not serve" in finding.message) == ("claim team/c", True)


def test_a_claim_with_a_step_that_the_older_release_can_not_undo_is_named():
    row = replace((e.node().rows or ())[0], kinds=("cdi-file", "fabric-partition"))
    finding = before_downgrade(None, e.node(rows=(row,)))["downgrade-claim"]
    assert finding.message == "was prepared in steps that 0.1.1 can't undo: fabric-partition"


def test_a_release_that_knows_health_hands_out_no_cordoned_device():
    node = e.node(health=NodeFaults(cordons=(Cordon("gpu-0000-01-00-0", "card", 0.0),)))
    report = examine(e.cluster(), node, NOW, back_to=older_release("0.2.0"))
    assert not [finding for finding in report.findings if finding.id in BACK]


def test_cordoned_devices_that_the_older_release_would_hand_out_are_named():
    taint = {"key": f"{e.DRIVER}/cordoned", "effect": "NoSchedule"}
    tainted = e.cluster(slices=[e.slice_of([{**e.DEVICES[0], "taints": [taint]}, *e.DEVICES[1:]])])
    assert e.DEVICES[0]["name"] in before_downgrade(tainted, None)["downgrade-health"].message
    node = e.node(health=NodeFaults(cordons=(Cordon("gpu-0000-01-00-0", "card", 0.0),)))
    assert "hand out gpu-0000-01-00-0 again" in before_downgrade(None, node)["downgrade-health"].message


def test_a_release_that_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match=r"a downgrade to 0\.0\.9 can"):
        older_release("0.0.9")


def test_claims_and_processes_that_still_hold_a_paused_node_are_named():
    finding = found(CLUSTERS["driver-upgrade-held"])["driver-upgrade-held"]
    assert finding.subject == "node n1"
    assert "held by team/c (pod p)" in finding.message
    finding = found(None, e.node(**NODES["driver-in-use"]))["driver-in-use"]
    assert "in use by nv-hostengine (PID 77); claims that are still prepared: " in finding.message
