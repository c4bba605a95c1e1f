"""explain and simulate of manifests: workloads with pod templates, shared claims, missing objects."""

from __future__ import annotations

import json

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run

TEMPLATE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: one-gpu}
spec: {spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}}
"""
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
"""
POD = "{spec: {containers: [{name: main}], resourceClaims: [{name: gpu, resourceClaimTemplateName: one-gpu}]}}"
DEPLOYMENT = (
    f"{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: web}}, spec: {{replicas: 9, template: {POD}}}}}"
)


@pytest.fixture
def play(tmp_path, capsys):
    def it(*texts, args=("simulate",), fleet="dgx-h100"):
        path = tmp_path / "file.yaml"
        path.write_text("\n---\n".join(texts))
        code = run([args[0], *args[1:], "-f", str(path), "--fleet", fleet, "-o", "json"])
        said = capsys.readouterr()
        document = json.loads(said.out) if said.out else None
        return code, document["moments"] if document and "moments" in document else document, said.err

    return it


def test_all_replicas_of_a_deployment_are_placed_or_wait(play):
    code, [moment], _ = play(TEMPLATE, DEPLOYMENT)
    assert code == ExitCode.NO_MATCH
    assert (len(moment["placed"]), len(moment["waiting"])) == (8, 1)


def test_a_daemonset_has_a_pod_for_each_node(play):
    daemonset = f"{{apiVersion: apps/v1, kind: DaemonSet, metadata: {{name: d}}, spec: {{template: {POD}}}}}"
    code, [moment], _ = play(TEMPLATE, daemonset, fleet="dgx-h100=3")
    assert code == ExitCode.OK
    assert sorted(one["node"] for one in moment["placed"]) == ["dgx-h100-1", "dgx-h100-2", "dgx-h100-3"]


def test_explain_of_a_deployment_and_of_a_whole_file(play):
    code, found, _ = play(TEMPLATE, DEPLOYMENT, args=("explain", "deployment/web"))
    assert code == ExitCode.NO_MATCH
    assert [one["ok"] for one in found["explanations"]] == [True] * 8 + [False]
    code, found, _ = play(TEMPLATE, CLAIM, DEPLOYMENT.replace("9", "2"), args=("explain",))
    assert code == ExitCode.OK
    subjects = [(one["subject"]["kind"], one["subject"]["name"]) for one in found["explanations"]]
    assert subjects == [("pod", "web-0"), ("pod", "web-1"), ("claim", "shared")]


@pytest.mark.parametrize("args", [("simulate",), ("explain",)])
def test_an_object_of_an_unknown_kind_is_named(play, args):
    code, found, err = play(TEMPLATE, DEPLOYMENT, "{kind: NIMService, metadata: {name: llama}, spec: {}}", args=args)
    assert code == ExitCode.BAD_INPUT
    assert found  # the other objects are judged all the same
    assert "NIMService llama" in err


def test_two_pods_that_share_a_claim_get_one_gpu(play):
    pod = "{{apiVersion: v1, kind: Pod, metadata: {{name: {}}}, spec: {{containers: [{{name: m}}], "
    pod += "resourceClaims: [{{name: gpu, resourceClaimName: shared}}]}}}}"
    code, [moment], _ = play(CLAIM, pod.format("one"), pod.format("two"))
    assert code == ExitCode.OK
    assert len({tuple(one["devices"]) for one in moment["placed"]}) == 1
    assert moment["usage"]["held"] == 1


def test_for_a_missing_template_the_nearest_name_is_suggested(play):
    pod = f"{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, {POD[1:]}".replace("one-gpu", "one-gpus")
    code, found, _ = play(TEMPLATE, pod, args=("explain", "pod", "p"))
    assert code == ExitCode.NO_MATCH
    assert "default/one-gpus, which is missing (did you mean default/one-gpu?)" in found["sentence"]
    code, [moment], _ = play(TEMPLATE, pod)
    assert code == ExitCode.NO_MATCH
    assert "did you mean default/one-gpu?" in moment["waiting"][0]["reason"]


def test_an_extended_resource_is_met_by_its_class_where_the_gate_is_on_and_waits_otherwise(play):
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: "
    pod += "[{name: m, resources: {limits: {nvidia.com/gpu: 2}}}]}}"
    cls = "{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: mine}, spec: "
    cls += "{extendedResourceName: nvidia.com/gpu, selectors: [{cel: {expression: "
    cls += "\"device.driver == 'gpu.nvidia.com'\"}}]}}"
    code, found, _ = play(pod, args=("explain", "pod/p"))
    assert code == ExitCode.NO_MATCH
    assert "waits for nvidia.com/gpu" in found["sentence"]
    code, found, _ = play(cls, pod, args=("explain", "pod/p", "--kubernetes", "1.36"))
    assert code == ExitCode.OK
    assert found["notes"] == ["extended resource nvidia.com/gpu is served by DeviceClass mine"]
    code, [moment], _ = play(cls, pod, args=("simulate", "--kubernetes", "1.36"))
    assert (code, len(moment["placed"][0]["devices"])) == (ExitCode.OK, 2)
    code, [moment], _ = play(cls, pod)
    assert code == ExitCode.NO_MATCH
    assert "only where the gate DRAExtendedResource is on" in moment["waiting"][0]["reason"]


MIG = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: part}
spec: {devices: {requests: [{name: mig, exactly: {deviceClassName: mig.nvidia.com, selectors: [{cel: {expression:
  "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"}}]}}]}}
"""


@pytest.mark.parametrize("number", ["", "=3"])
def test_simulated_nodes_offer_what_the_agent_does_with_the_version_and_gates(play, number):
    fleet = f"dgx-h100{number}"
    assert play(MIG, args=("simulate",), fleet=fleet)[0] == ExitCode.NO_MATCH
    code, [moment], err = play(MIG, args=("simulate", "--kubernetes", "1.36"), fleet=fleet)
    assert code == ExitCode.OK
    assert "-mig-" in moment["placed"][0]["devices"][0]
    assert "simulated nodes: partitions on demand" in err
    code, _, err = play(MIG, args=("simulate", "--kubernetes", "1.36", "--mig", "static"), fleet=fleet)
    assert code == ExitCode.NO_MATCH
    assert "existing partitions only (--mig static)" in err
    for version in ("1.34", "1.35"):
        gate = ("--kubernetes", version, "--gate", "DRAPartitionableDevices=true")
        assert play(MIG, args=("explain", "claim/part", *gate), fleet=fleet)[0] == ExitCode.OK


NUMA = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: four}
spec: {devices: {requests: [{name: gpus, exactly: {deviceClassName: gpu.nvidia.com, count: 4}}],
  constraints: [{matchAttribute: resource.kubernetes.io/numaNode}]}}
"""


@pytest.mark.parametrize("profile", ["dgx-h100", "hgx-h200"])
def test_four_gpus_of_one_numa_node_fit_on_machines_whose_design_is_known(play, profile):
    assert play(NUMA, fleet=profile)[0] == ExitCode.OK


def test_a_profile_without_numa_nodes_is_named_in_the_warning(play):
    code, _, err = play(NUMA, fleet="l40s")
    assert code == ExitCode.NO_MATCH
    assert "l40s: the profile does not name the NUMA nodes" in err


def test_two_nodes_of_one_profile_have_two_names(play):
    code, found, _ = play(CLAIM, args=("explain", "claim/shared"), fleet="demo-h100=2")
    assert code == ExitCode.OK
    assert len({one["node"] for one in found["nodes"]}) == 2


# Terminating pods, suspended workloads, init containers.


def running(**metadata):
    claim = json.loads(
        '{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata":'
        ' {"name": "held", "namespace": "default"},'
        '"spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},'
        '"status": {"reservedFor": [{"resource": "pods", "name": "user", "uid": "1"}], "allocation":'
        '{"devices": {"results":'
        '[{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "dgx-h100-1", "device": "gpu-0000-1b-00-0"}]}}}}'
    )
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "user", "namespace": "default", "uid": "1", **metadata},
        "spec": {
            "nodeName": "dgx-h100-1",
            "containers": [{"name": "main"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "held"}],
        },
        "status": {"phase": "Running"},
    }
    return json.dumps(claim), json.dumps(pod)


ENDING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def test_a_terminating_pod_is_not_shown_as_running(play):
    code, found, _ = play(*running(), args=("explain", "pod/user"))
    assert (code, "runs on node" in found["sentence"]) == (ExitCode.OK, True)
    code, found, _ = play(*running(**ENDING), args=("explain", "pod/user"))
    assert code == ExitCode.OK
    assert "is terminating on node dgx-h100-1" in found["sentence"]
    assert "gpu-0000-1b-00-0" in found["sentence"]


@pytest.mark.parametrize("command", ["claims", "slices"])
def test_claims_and_slices_show_a_terminating_pod(tmp_path, capsys, command):
    path = tmp_path / "file.yaml"
    path.write_text("\n---\n".join(running(**ENDING)))
    run([command, "-f", str(path), "--fleet", "dgx-h100"])
    out = capsys.readouterr().out
    assert "user Terminating" in out
    assert "Running" not in out


def test_simulate_says_that_terminating_pods_hold_their_devices(tmp_path, capsys):
    path = tmp_path / "file.yaml"
    path.write_text("\n---\n".join(running(**ENDING)))
    assert run(["simulate", "-f", str(path), "--fleet", "dgx-h100"]) == ExitCode.OK
    assert "pod user is terminating: its devices are held until it has ended" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Job", f"suspend: true, parallelism: 2, template: {POD}"),
        ("CronJob", f"suspend: true, schedule: '@daily', jobTemplate: {{spec: {{template: {POD}}}}}"),
    ],
)
def test_a_suspended_workload_makes_no_pods_and_is_reported(tmp_path, capsys, kind, spec):
    path = tmp_path / "file.yaml"
    path.write_text(f"{TEMPLATE}\n---\n{{apiVersion: batch/v1, kind: {kind}, metadata: {{name: j}}, spec: {{{spec}}}}}")
    for command in (["simulate"], ["explain", f"{kind.lower()}/j"], ["explain"]):
        assert run([*command, "-f", str(path), "--fleet", "dgx-h100"]) == ExitCode.OK
        assert f"{kind} j is suspended: it makes no pods until it is resumed" in capsys.readouterr().out


def test_devices_of_init_containers_are_used_again_by_later_containers(play):
    def container(name, count):
        return f"{{name: {name}, resources: {{limits: {{example.com/gpu: {count}}}}}}}"

    gpus = (
        "{apiVersion: resource.k8s.io/v1, kind: DeviceClass, metadata: {name: gpus},"
        " spec: {extendedResourceName: example.com/gpu,"
        " selectors: [{cel: {expression: 'device.driver == \"gpu.nvidia.com\"'}}]}}"
    )
    spec = f"initContainers: [{container('a', 3)}, {container('b', 5)}], containers: [{container('main', 2)}]"
    pod = f"{{apiVersion: v1, kind: Pod, metadata: {{name: p}}, spec: {{{spec}}}}}"
    gate = ("simulate", "--gate", "DRAExtendedResource=true")
    code, [moment], _ = play(gpus, pod, args=gate)
    assert code == ExitCode.OK
    assert len(moment["placed"][0]["devices"]) == 5  # two for main, and three more while b runs


def test_the_cuda_version_that_an_image_needs_is_noted_with_a_selector_for_it(play):
    env = '[{name: NVIDIA_REQUIRE_CUDA, value: "cuda>=99.1"}]'
    pod = (
        "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: main, env: " + env + "}],"
        " resourceClaims: [{name: gpu, resourceClaimTemplateName: one-gpu}]}}"
    )
    code, found, _ = play(TEMPLATE, pod, args=("explain", "pod/p"))
    assert code == ExitCode.OK
    assert "needs CUDA 99.1: 8 of 8 devices" in found["notes"][0]
    assert 'cudaDriverVersion.compareTo(semver("99.1.0")) >= 0' in found["notes"][1]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: c\n    resorces: {}\n", ("6:5", "resorces")),
        ("kind: Node\nmetadata: {name: n}\nspec:\n  unschedulble: true\n", ("4:3", "unschedulble")),
        ("kind: Deployment\nmetadata: {name: d}\nspec:\n  replicas: '2'\n", ("4:3", "not a whole number")),
        ('{"kind": "Pod",\n "metadata": {"name": "p"},\n "spec": {"nodename": "x"}}', ("3:11", "nodename")),
        (
            "kind: ResourceSlice\nmetadata: {name: s}\nspec:\n  driver: d\n  pool: {name: p}\n  nodename: x\n",
            ("6:3", "nodename"),
        ),
    ],
)
@pytest.mark.parametrize("command", [["explain"], ["simulate"], ["slices"], ["claims"], ["cel", "test", "-e", "true"]])
def test_unknown_and_wrongly_typed_fields_are_faults_with_line_and_column(tmp_path, capsys, command, text, fault):
    path = tmp_path / "file.yaml"
    path.write_text(text)
    files = [str(path)] if command[0] == "cel" else ["-f", str(path)]
    assert run([*command, *files, "--fleet", "l40s"]) == ExitCode.BAD_INPUT
    err = capsys.readouterr().err
    place, word = fault
    assert f"file.yaml:{place}:" in err
    assert word in err


def pod_with(**limits):
    container = {"name": "main", "resources": {"limits": limits, "claims": [{"name": "gpu"}]}}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "p"},
            "spec": {"containers": [container], "resourceClaims": claims},
        }
    )


def test_a_limit_of_0_asks_for_nothing(play):
    code, found, _ = play(TEMPLATE, pod_with(**{"nvidia.com/gpu": "0"}), args=("explain", "pod/p"))
    assert (code, found["sentence"]) == (ExitCode.OK, "fits on dgx-h100-1: gpu-0000-1b-00-0 for gpu")


def test_a_resource_of_which_simulated_nodes_say_nothing_is_not_judged(play, capsys):
    code, found, _ = play(TEMPLATE, pod_with(**{"rdma/hca": "1"}), args=("explain", "pod/p"))
    said = "not judged: rdma/hca; the nodes here do not say whether they offer it"
    assert (code, found["ok"], found["notes"]) == (ExitCode.OK, True, [said])
    code, [moment], _ = play(TEMPLATE, pod_with(**{"rdma/hca": "1"}))
    assert (code, len(moment["placed"])) == (ExitCode.OK, 1)
    node = "{apiVersion: v1, kind: Node, metadata: {name: n}, status: {allocatable: {cpu: 4}}}"
    code, found, _ = play(TEMPLATE, node, pod_with(**{"rdma/hca": "1"}), args=("explain", "pod/p"))
    assert (code, "waits for rdma/hca" in found["sentence"]) == (ExitCode.NO_MATCH, True)


IMPLICIT = "deviceclass.resource.kubernetes.io/"
OWN_NAME = """
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: named}
spec: {extendedResourceName: example.com/gpu, selectors: [{cel: {expression: "device.driver == 'gpu.nvidia.com'"}}]}
"""


def asking_for(*resources):
    container = {"name": "main", "resources": {"limits": dict.fromkeys(resources, "1")}}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    )


def under(version):
    return "--kubernetes", version, "--gate", "DRAExtendedResource=true"


@pytest.mark.parametrize("resource", [f"{IMPLICIT}named", f"{IMPLICIT}gpu.nvidia.com", f"{IMPLICIT}nothing"])
def test_on_1_34_a_pod_gets_no_device_for_the_implicit_name_of_a_class(tmp_path, capsys, play, resource):
    reason = "the scheduler of Kubernetes 1.34 makes no claim for the implicit name of a class"
    code, found, _ = play(OWN_NAME, asking_for(resource), args=("explain", "pod/p", *under("1.34")))
    assert (code, found["sentence"]) == (ExitCode.OK, "pod p gets no device")
    assert found["notes"] == [f"pod p starts without {resource}: {reason}"]
    assert run(["simulate", *under("1.34"), "-f", str(tmp_path / "file.yaml"), "--fleet", "dgx-h100"]) == ExitCode.OK
    assert capsys.readouterr().out.count(reason) == 1


def test_from_1_35_on_a_pod_gets_a_device_for_the_implicit_name_of_a_class(play):
    code, found, _ = play(OWN_NAME, asking_for(f"{IMPLICIT}named"), args=("explain", "pod/p", *under("1.35")))
    assert code == ExitCode.OK
    assert found["notes"] == [f"extended resource {IMPLICIT}named is served by DeviceClass named"]


def test_on_1_34_an_implicit_name_is_ignored_beside_another_resource_only_if_its_class_has_no_other_name(play):
    code, [moment], _ = play(
        OWN_NAME,
        asking_for("example.com/gpu", f"{IMPLICIT}gpu.nvidia.com"),
        args=("simulate", *under("1.34")),
    )
    assert (code, len(moment["placed"][0]["devices"])) == (ExitCode.OK, 1)
    code, [moment], _ = play(
        OWN_NAME, asking_for("example.com/gpu", f"{IMPLICIT}named"), args=("simulate", *under("1.34"))
    )
    assert code == ExitCode.NO_MATCH
    assert f"{IMPLICIT}named: no DeviceClass serves it" in moment["waiting"][0]["reason"]


def test_on_1_34_without_the_gate_an_implicit_name_waits(play):
    pod = asking_for(f"{IMPLICIT}named")
    code, found, _ = play(OWN_NAME, pod, args=("explain", "pod/p", "--kubernetes", "1.34"))
    assert (code, "only where the gate DRAExtendedResource is on" in found["sentence"]) == (ExitCode.NO_MATCH, True)


def test_the_gate_that_an_extended_resource_needs_is_named_where_it_is_off(play):
    code, found, _ = play(TEMPLATE, pod_with(**{"nvidia.com/gpu": "1"}), args=("explain", "pod/p"))
    assert (code, "only where the gate DRAExtendedResource is on" in found["sentence"]) == (ExitCode.NO_MATCH, True)


@pytest.mark.parametrize("words", ["deployments.apps/web", "deploy/web", "deployments/web", "Deployment/web"])
def test_a_workload_may_be_named_as_in_kubectl(play, words):
    code, found, _ = play(TEMPLATE, DEPLOYMENT.replace("9", "1"), args=("explain", words))
    assert (code, [one["ok"] for one in found["explanations"]]) == (ExitCode.OK, [True])


def test_for_a_missing_class_the_nearest_name_is_suggested(play):
    code, found, _ = play(CLAIM.replace("gpu.nvidia.com", "gpu.nvidia.co"), args=("explain", "claim", "shared"))
    said = "there is no DeviceClass gpu.nvidia.co: did you mean gpu.nvidia.com?"
    assert (code, found["notes"]) == (ExitCode.ABORTS_SCHEDULING, [said])


def test_a_claim_of_the_same_name_in_another_namespace_is_mentioned_but_not_suggested(play):
    elsewhere = CLAIM.replace("{name: shared}", "{name: shared, namespace: b}")
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: main}],"
    _, found, _ = play(
        elsewhere, f"{pod} resourceClaims: [{{name: gpu, resourceClaimName: shared}}]}}}}", args=("explain", "pod/p")
    )
    assert "there is one in namespace b, but a pod uses only those of its own namespace" in found["sentence"]


def test_the_claims_of_running_pods_are_not_explained_again(play):
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: p}, status: {phase: Running}, spec: {nodeName: dgx-h100-1,"
    held = "{request: gpu, driver: gpu.nvidia.com, pool: dgx-h100-1, device: gpu-0000-1b-00-0}"
    claim = f"{CLAIM}status: {{allocation: {{devices: {{results: [{held}]}}}}}}"
    running = f"{pod} containers: [{{name: main}}], resourceClaims: [{{name: gpu, resourceClaimName: shared}}]}}}}"
    _, found, _ = play(claim, running, args=("explain",))
    assert [one["subject"]["kind"] for one in found["explanations"]] == ["pod"]


@pytest.mark.parametrize("command", ["explain", "simulate"])
def test_a_file_without_anything_to_judge_is_bad_input(play, command):
    code, _, err = play(TEMPLATE, args=(command,))
    assert (code, "no pod, no claim and no pod template is in" in err) == (ExitCode.BAD_INPUT, True)


def test_for_a_node_that_does_not_exist_the_nearest_name_is_suggested(play):
    code, _, err = play(TEMPLATE, DEPLOYMENT, args=("simulate", "--drain", "dgx-h100-2"))
    assert (code, "there is no node dgx-h100-2" in err, "did you mean dgx-h100-1?" in err) == (
        ExitCode.BAD_INPUT,
        True,
        True,
    )
