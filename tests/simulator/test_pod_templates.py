"""Objects of kinds that are used for GPU workloads, and the pods that their controllers make."""

from __future__ import annotations

import pytest
import yaml

from dra_driver.base.errors import InputError
from dra_driver.simulator.workloads import templates_of

POD = "{spec: {containers: [{name: main}]}}"
KINDS = {
    "{kind: Deployment, spec: {replicas: 3, template: POD}}": {"": 3},
    "{kind: Deployment, spec: {template: POD}}": {"": 1},
    "{kind: StatefulSet, spec: {replicas: 2, volumeClaimTemplates: [{spec: {}}], template: POD}}": {"": 2},
    "{kind: ReplicaSet, spec: {replicas: 0, template: POD}}": {"": 0},
    "{kind: Job, spec: {parallelism: 4, completions: 2, template: POD}}": {"": 2},
    "{kind: Job, spec: {completions: 9, template: POD}}": {"": 1},
    "{kind: CronJob, spec: {schedule: x, jobTemplate: {spec: {parallelism: 2, template: POD}}}}": {"": 2},
    "{kind: PyTorchJob, spec: {pytorchReplicaSpecs: {Master: {template: POD}, "
    "Worker: {replicas: 3, template: POD}}}}": {"master": 1, "worker": 3},
    "{kind: MPIJob, spec: {slotsPerWorker: 8, mpiReplicaSpecs: {Launcher: {template: POD}, "
    "Worker: {replicas: 2, template: POD}}}}": {"launcher": 1, "worker": 2},
    "{kind: RayCluster, spec: {headGroupSpec: {template: POD}, workerGroupSpecs: "
    "[{groupName: a100, replicas: 2, minReplicas: 1, numOfHosts: 4, template: POD}]}}": {"head": 1, "a100": 8},
    "{kind: RayJob, spec: {entrypoint: x, rayClusterSpec: {headGroupSpec: {template: POD}}}}": {"": 1},
    "{kind: LeaderWorkerSet, spec: {replicas: 2, leaderWorkerTemplate: {size: 4, workerTemplate: POD}}}": {"": 8},
    "{kind: LeaderWorkerSet, spec: {replicas: 2, leaderWorkerTemplate: {size: 4, leaderTemplate: POD, "
    "workerTemplate: POD}}}": {"leader": 2, "worker": 6},
    "{kind: JobSet, spec: {replicatedJobs: [{name: ps, template: {spec: {template: POD}}}, "
    "{name: train, replicas: 2, template: {spec: {parallelism: 4, completions: 4, template: POD}}}]}}": {
        "ps": 1,
        "train": 8,
    },
    "{kind: Job, apiVersion: batch.volcano.sh/v1alpha1, spec: {tasks: [{name: w, replicas: 2, template: POD}]}}": {
        "": 2
    },
    "{kind: Service, spec: {ports: [{port: 80}]}}": {},
}


@pytest.mark.parametrize("text", KINDS)
def test_each_kind_makes_the_pods_that_its_controller_makes(text):
    wire = {"metadata": {"name": "train"}, **yaml.safe_load(text.replace("POD", POD))}
    assert {one.role: one.count for one in templates_of(wire)} == KINDS[text]


def test_pods_have_the_labels_and_names_of_their_template():
    text = (
        "{kind: Job, metadata: {name: j, namespace: ml}, spec: {parallelism: 2, template: {metadata: {labels: {a: b}}"
    )
    wire = yaml.safe_load(text + ", spec: {containers: [{name: main}]}}}}")
    [template] = templates_of(wire)
    assert [(pod["metadata"]["namespace"], pod["metadata"]["name"]) for pod in template.pods()] == [
        ("ml", "j-0"),
        ("ml", "j-1"),
    ]
    assert next(template.pods())["metadata"]["labels"] == {"a": "b"}


@pytest.mark.parametrize("count", ["-1", "yes", "100001", "1.5", "'2'"])
def test_an_invalid_count_is_refused(count):
    wire = yaml.safe_load(f"{{kind: Deployment, metadata: {{name: d}}, spec: {{replicas: {count}, template: {POD}}}}}")
    with pytest.raises(InputError):
        templates_of(wire)
