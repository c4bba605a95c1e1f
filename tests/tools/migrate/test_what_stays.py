"""Manifests that are refused, left as they are, or migrated with a remark about what remains."""

from __future__ import annotations

import json

import pytest
import yaml

from dra_driver.base.errors import InputError
from dra_driver.tools.migrate import SourceText, migrate
from tests.tools.migrate.support.pods import gpus, pod, requests, run


@pytest.mark.parametrize(
    "text",
    [
        "image: {{ .Values.image }}\n",
        'image: "{{ .Values.image }}"\n',
        "{{- if .Values.gpu }}\nkind: Pod\n{{- end }}\n",
        "spec:\n  {{- toYaml .Values.spec | nindent 2 }}\n",
        'a: {{ include "x" . }}\n',
        "{{ range $i := until 3 }}\nkind: Pod\n{{ end }}\n",
    ],
)
def test_a_template_of_helm_is_refused_with_what_to_do(text):
    with pytest.raises(InputError, match="is a Helm template") as caught:
        migrate([SourceText("chart/templates/a.yaml", f"apiVersion: v1\nkind: Pod\n{text}")])
    assert caught.value.code == "input.template"
    assert "helm template" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "metadata: {annotations: {a: '{{ $labels.instance }} is down'}}\n",
        "spec: {args: ['{{inputs.parameters.x}}']}\n",
        "data:\n  mail: |\n    {{ range .Alerts }}\n    {{ .Annotations }}\n    {{ end }}\n",
        "# {{ a comment }}\nspec: {}\n",
    ],
)
def test_braces_of_other_programs_are_not_taken_for_a_helm_template(text):
    (done,) = migrate([SourceText("a.yaml", f"apiVersion: v1\nkind: ConfigMap\n{text}")])
    assert done.new == done.old


def test_objects_that_refuse_claims_stay_as_they_are():
    spec = {"template": {"spec": {"containers": [gpus("c", 1)]}}}
    wire = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "k"}, "spec": spec}
    found, done = run(wire)
    assert found == [wire]
    assert [row.code for row in done.losses] == ["refuses-claims"]


def test_a_field_that_still_names_the_resource_is_reported():
    wire = {
        "apiVersion": "sparkoperator.k8s.io/v1beta2",
        "kind": "SparkApplication",
        "metadata": {"name": "s"},
        "spec": {"executor": {"gpu": {"name": "nvidia.com/gpu", "quantity": 1}}},
    }
    found, done = run(wire)
    assert found == [wire]
    assert [(row.code, row.path) for row in done.losses] == [("mention", "spec.executor.gpu.name")]


def test_a_status_and_annotations_are_never_touched():
    wire = pod([gpus("c", 1)])
    wire["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(wire)}
    wire["status"] = {"phase": "Running", "containerStatuses": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    found, _ = run(wire)
    assert found[1]["status"] == wire["status"]
    assert found[1]["metadata"] == wire["metadata"]


def test_a_workflow_with_a_patch_keeps_what_the_patch_says():
    step = {"name": "t", "container": gpus("main", 1), "podSpecPatch": '{"priority": 5}'}
    wire = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "w"},
        "spec": {"templates": [step]},
    }
    found, _ = run(wire)
    patch = json.loads(found[1]["spec"]["templates"][0]["podSpecPatch"])
    assert patch == {"priority": 5, "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "w-gpu"}]}


def test_a_patch_with_variables_is_bad_input():
    step = {"name": "t", "container": gpus("main", 1), "podSpecPatch": "{{inputs.parameters.patch}}"}
    wire = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "w"},
        "spec": {"templates": [step]},
    }
    with pytest.raises(InputError, match="podSpecPatch"):
        run(wire)


def test_a_quota_that_is_there_already_is_not_written_twice():
    key = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
    wire = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "8", key: "4", "limits.nvidia.com/gpu": "8"}},
    }
    found, _ = run(wire)
    assert found[0]["spec"]["hard"] == {key: "4"}


def test_sharing_of_some_devices_is_reported_and_not_guessed():
    row = {"name": "nvidia.com/gpu", "replicas": 2, "devices": ["0"]}
    rows = [row, {"name": "nvidia.com/gpu", "replicas": 4, "rename": "nvidia.com/gpu-x4"}]
    text = yaml.safe_dump({"version": "v1", "sharing": {"timeSlicing": {"resources": rows}}})
    wire = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": text}}
    found, done = run(wire)
    rules = yaml.safe_load(found[0]["data"]["sharing.yaml"])["rules"]
    assert [one["replicas"] for one in rules] == [4]
    assert {one.code for one in done.losses} == {"sharing-devices", "sharing-namespace"}


def test_a_configmap_of_another_program_is_left_alone():
    wire = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
        "data": {"a": "sharing: [", "b": "version: v1"},
    }
    assert run(wire)[0] == [wire]


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "---\n---\n# end\n"])
def test_a_file_without_objects_stays(text):
    (done,) = migrate([SourceText("empty.yaml", text)])
    assert done.new == text


def test_the_rules_beside_a_configuration_are_read_by_the_agent(tmp_path):
    from dra_driver.node.claims.config_schema import read_sharing_config
    from tests.support.migrate_shapes import HERE

    for name, count in (("33-time-slicing-config.yaml", 1), ("34-mps-config-and-shares.yaml", 2)):
        first = next(yaml.safe_load_all((HERE / "expected" / name).read_text()))
        path = tmp_path / name
        path.write_text(first["data"]["sharing.yaml"])
        assert len(read_sharing_config(path).rules) == count


def test_an_object_in_json_is_put_into_a_list_and_that_is_reported():
    text = json.dumps(pod([gpus("c", 1)]), indent=2)
    (done,) = migrate([SourceText("p.json", text)])
    assert [one["kind"] for one in json.loads(done.new)["items"]] == ["ResourceClaimTemplate", "Pod"]
    assert "list" in {row.code for row in done.changes}
    (again,) = migrate([SourceText("p.json", done.new)])
    assert again.new == again.old


def test_templates_are_put_beside_a_typed_list():
    listed = {
        "apiVersion": "v1",
        "kind": "PodList",
        "items": [{k: v for k, v in pod([gpus("c", 1)]).items() if k != "kind"}],
    }
    found, _ = run(listed)
    assert [one["kind"] for one in found] == ["ResourceClaimTemplate", "PodList"]
    assert "resourceClaims" in found[1]["items"][0]["spec"]


def plugin_config(*rows, name="plugin", key="config", **sharing):
    text = yaml.safe_dump({"version": "v1", "sharing": {"timeSlicing": {"resources": list(rows), **sharing}}})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {key: text}}


def test_a_name_that_a_configuration_gives_to_shares_is_read_as_shares():
    config = plugin_config(
        {"name": "nvidia.com/gpu", "rename": "nvidia.com/gpu-small", "replicas": 4},
        {"name": "mig-1g.10gb", "rename": "slice", "replicas": 2},
    )
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"requests.nvidia.com/gpu-small": "8"}},
    }
    found, done = run(
        pod([gpus("a", 1, "nvidia.com/gpu-small"), gpus("b", 2, "nvidia.com/slice"), gpus("c", 1)]), quota, config
    )
    assert requests(found[0]) == {
        "a": ("gpu-share.nvidia.com", 1),
        "b": ("mig-share.nvidia.com", 2),
        "c": ("gpu.nvidia.com", 1),
    }
    assert {row["key"] for row in found[1]["spec"]["tolerations"]} == {
        "nvidia.com/gpu-small",
        "nvidia.com/slice",
        "nvidia.com/gpu",
    }
    assert found[2]["spec"]["hard"] == {"gpu-share.nvidia.com.deviceclass.resource.k8s.io/devices": "8"}
    assert any("nvidia.com/slice is read as a share of a MIG partition 1g.10gb" in one.what for one in done.changes)
    assert not {one.code for one in done.losses} & {"sharing-rename", "mention", "unknown-resource"}


def test_a_name_that_a_configuration_gives_to_two_resources_is_reported_and_not_guessed():
    rows = [
        {"name": "nvidia.com/gpu", "rename": "nvidia.com/small", "replicas": 4},
        {"name": "nvidia.com/mig-1g.10gb", "rename": "nvidia.com/small", "replicas": 4},
    ]
    found, done = run(pod([gpus("a", 1, "nvidia.com/small")]), plugin_config(*rows))
    assert found[0]["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/small": 1}}
    assert {"sharing-rename", "unknown-resource"} <= {one.code for one in done.losses}


def test_an_unknown_resource_is_reported():
    wire = pod([gpus("a", 1, "nvidia.com/gpu-small"), gpus("b", 1, "example.com/gpu")])
    found, done = run(wire)
    assert found == [wire]
    [loss] = done.losses
    assert (loss.code, "nvidia.com/gpu-small" in loss.what) == ("unknown-resource", True)


def test_a_default_that_would_be_added_to_migrated_containers_is_reported():
    limits = [{"type": "Container", "default": {"nvidia.com/gpu": "1"}}]
    wire = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l"}, "spec": {"limits": limits}}
    found, done = run(wire)
    assert found == [wire]
    [loss] = done.losses
    assert loss.code == "limit-range"


def test_pods_that_bypass_the_scheduler_or_use_another_are_reported():
    _, done = run(pod([gpus("a", 1)], nodeName="n1", schedulerName="volcano"))
    assert {"node-name", "scheduler-name"} <= {one.code for one in done.losses}
    _, done = run(pod([gpus("a", 1)], schedulerName="default-scheduler"))
    assert not {"node-name", "scheduler-name"} & {one.code for one in done.losses}


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("job.yaml", "containers:\n- resources: {limits: {nvidia.com/gpu: 1}}\n"),
        ("patch", '[{"op": "add", "path": "/spec/containers/0/resources/limits/nvidia.com~1gpu", "value": 2}]'),
        ("pod.json", '{"resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}'),
    ],
)
def test_resources_in_manifests_inside_texts_are_reported(key, text):
    wire = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {key: text}}
    found, done = run(wire)
    assert found == [wire]
    assert [one.code for one in done.losses] == ["mention"]
    assert "inside a string" in done.losses[0].what


def test_a_pod_inside_a_pod_is_found():
    workers = {"pipelineParallelSize": 2, "containers": [gpus("worker", 2)]}
    predictor = {"model": {"resources": {"limits": {"nvidia.com/gpu": 1}}}, "workerSpec": workers}
    meta = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService", "metadata": {"name": "llm"}}
    found, done = run({**meta, "spec": {"predictor": predictor}})
    assert [one["metadata"]["name"] for one in found[:2]] == ["llm-predictor-gpu", "llm-worker-gpu"]
    assert found[2]["spec"]["predictor"]["workerSpec"]["resourceClaims"][0] == {
        "name": "gpu",
        "resourceClaimTemplateName": "llm-worker-gpu",
    }
    assert {one.code for one in done.losses} == {"topology-manager"}
