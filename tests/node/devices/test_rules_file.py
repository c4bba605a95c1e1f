"""The agent's sharing configuration as it is written: ours, and the device plugin's."""

from pathlib import Path

import pytest

from dra_driver.base.errors import InputError
from dra_driver.base.wire import DeviceType, Interval, MpsSettings, ShareMode, Tenants, TimeSlicingSettings
from dra_driver.node.claims.config_schema import read_sharing_config
from dra_driver.node.devices.rules import DeviceMatch, Portion, SharingRule

GIB = 1 << 30

RULES = """\
version: rules/v1
rules:
  - name: notebooks
    match:
      nodes: ["gpu-*"]
      nodeLabels: {pool: notebooks}
      products: ["*A100*"]
      types: [gpu]
    replicas: 4
    sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Short}}
    enforcement: hard
  - match: {profiles: ["1g.10gb"]}
    memory: {default: 2Gi, min: 1Gi, step: 512Mi, max: 8Gi}
    replicas: 4
    sharing: {strategy: MPS, mpsConfig: {defaultActiveThreadPercentage: 50}}
    acrossNamespaces: true
  - match: {devices: ["gpu-0000-1b-00-0"]}
    exclusive: true
  - compute: {default: 25, step: 5}
"""


@pytest.fixture
def read(tmp_path: Path):
    def read_text(text: str, tenants: Tenants = Tenants.ANY):
        path = tmp_path / "sharing.yaml"
        path.write_text(text)
        return read_sharing_config(path, tenants)

    return read_text


@pytest.fixture
def faults_of(read):
    def faults(text: str, tenants: Tenants = Tenants.ANY) -> list[str]:
        with pytest.raises(InputError) as caught:
            read(text, tenants)
        assert caught.value.code == "input.sharing-config"
        head, *listed = caught.value.message.split("\n  ")
        assert f"has {len(listed)} mistake" in head
        return listed

    return faults


def test_every_field_is_read(read):
    first, second, third, fourth = read(RULES).rules
    match = DeviceMatch(("gpu-*",), (("pool", "notebooks"),), products=("*A100*",), types=(DeviceType.GPU,))
    assert first == SharingRule(
        "notebooks", match, ShareMode.REPLICAS, 4, None, TimeSlicingSettings(Interval.SHORT), True
    )
    assert not second.is_hard
    assert second.match == DeviceMatch(profiles=("1g.10gb",), types=(DeviceType.MIG,))
    assert (second.name, second.mode, second.replicas) == ("rule 2", ShareMode.MEMORY, 4)
    assert second.portion == Portion(2 * GIB, GIB, GIB // 2, 8 * GIB)
    assert second.settings == MpsSettings(active_thread_percentage=50, multi_user=True, across_namespaces=True)
    assert (third.mode, third.replicas, third.portion) == (None, None, None)
    assert (fourth.mode, fourth.portion, fourth.match) == (ShareMode.COMPUTE, Portion(25, 5, 5), DeviceMatch())


@pytest.mark.parametrize(
    ("section", "several"),
    [("{strategy: MPS}", True), ("{strategy: MPS, mpsConfig: {multiUser: false}}", False)],
    ids=["unset", "set"],
)
def test_mps_is_for_several_users_unless_the_file_denies_it(read, section, several):
    (rule,) = read(f"version: rules/v1\nrules: [{{replicas: 4, sharing: {section}}}]\n").rules
    assert rule.settings == MpsSettings(multi_user=several)


def test_a_rule_applies_to_nvidias_gpus_unless_it_names_others(read):
    text = "version: rules/v1\nrules: [{replicas: 2}, {match: {vendors: [amd]}, replicas: 2, enforcement: hard}]"
    assert [rule.match.vendors for rule in read(text).rules] == [("nvidia",), ("amd",)]


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("{match: {vendors: [intel]}, replicas: 2}", "vendors[0]: expected one of nvidia, amd, got 'intel'"),
        ("{match: {vendors: [amd]}, replicas: 2, sharing: {strategy: MPS}}", "AMD's GPUs have no strategy MPS"),
        ("{match: {vendors: [amd]}, replicas: 2, sharing: {strategy: TimeSlicing}}", "no strategy TimeSlicing"),
        ("{match: {vendors: [nvidia, amd]}, compute: {default: 25}}", "AMD's GPUs are not shared by percent"),
    ],
)
def test_a_rule_that_the_gpus_of_its_vendor_do_not_support_is_refused(faults_of, rule, fault):
    (found,) = faults_of(f"version: rules/v1\nrules: [{rule}]")
    assert fault in found


def test_all_faults_are_reported_at_once_with_line_and_path(faults_of):
    faults = faults_of("""\
version: rules/v1
rules:
  - match: {node: x}
    replicas: 1
  - memory: {default: 10Gi, min: 3Gi, step: 2Gi}
    compute: {default: 120}
    sharing:
      strategy: TimeSlicing
      mpsConfig: {defaultActiveThreadPercentage: 500}
  - exclusive: true
    replicas: 2
  - sharing: {strategy: MPS}
  - match: {types: [tpu], nodeLabels: {gpus: 8}}
    replicas: four
    acrossNamespaces: true
extra: 1
""")
    found = "\n".join(faults)
    for line, path in (
        (3, "rules[0].match.node: unknown field"),
        (4, "rules[0].replicas: expected a whole number from 2 to 128, got 1"),
        (5, "rules[1].memory.default: is not min plus a multiple of step"),
        (6, "rules[1].compute.default: expected a whole number from 1 to 100"),
        (6, "rules[1].compute: shares are counted in memory or in compute"),
        (9, "rules[1].sharing.mpsConfig: only goes with strategy MPS"),
        (9, "rules[1].sharing.mpsConfig.defaultActiveThreadPercentage: must be between 0 and 100"),
        (10, "rules[2].exclusive: does not go with replicas"),
        (12, "rules[3].replicas: missing"),
        (13, "rules[4].match.types[0]: expected gpu or mig"),
        (13, "rules[4].match.nodeLabels.gpus: expected a string"),
        (14, "rules[4].replicas: expected a whole number"),
        (15, "rules[4].acrossNamespaces: only goes with strategy MPS"),
        (16, "extra: unknown field"),
    ):
        assert f"line {line}: {path}" in found, found
    assert len(faults) == 14, found


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "document: expected named fields"),
        ("[]", "document: expected named fields"),
        ("rules: []", "version: missing"),
        ("version: rules/v2\nrules: [{replicas: 2}]", "version: expected 'rules/v1'"),
        ("version: rules/v1", "rules: missing"),
        ("version: rules/v1\nrules: [{memory: {min: 1Gi}}]", "rules[0].memory.default: missing"),
        ("version: rules/v1\nrules: [{memory: {default: 1.5Mi}}]", "expected an amount of memory in whole MiB"),
        ("version: rules/v1\nrules: [{memory: {default: 1Gi, max: 512Mi}}]", "is more than max"),
        ("version: rules/v1\nrules: [{memory: {default: 1Gi, min: 2Gi}}]", "is less than min"),
        (
            "version: rules/v1\nrules: [{match: {profiles: [1g.10gb], types: [gpu]}, replicas: 2}]",
            "a whole GPU has no MIG profile",
        ),
        (
            (
                "version: rules/v1\nrules:\n- {match: {types: [mig]}, replicas: 2, sharing:\n"
                "  {strategy: TimeSlicing, timeSlicingConfig: {interval: Long}}}"
            ),
            "a MIG device has no interval",
        ),
        ("version: rules/v1\nrules: [{exclusive: true, sharing: {strategy: MPS}}]", "does not go with exclusive"),
        ("version: rules/v1\nrules: [{replicas: 2, enforcement: cooperative}]", "enforcement: expected hard"),
        (
            "version: rules/v1\nrules: [{compute: {default: 5}, enforcement: hard}]",
            "only goes with replicas and memory",
        ),
        ("version: rules/v1\nrules: [{exclusive: true, enforcement: hard}]", "only goes with replicas and memory"),
        (
            "version: rules/v1\nrules: [{match: {profiles: [1g.10gb]}, replicas: 2, enforcement: hard}]",
            "memory of whole GPUs only",
        ),
        ("version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu}]}}", "replicas: missing"),
        ("version: v1\nsharing: {timeSlicing: {resources: [{name: amd.com/gpu, replicas: 2}]}}", "nvidia.com/gpu"),
        ("version: v1\nsharing: {timeSlicing: {}, mps: {}}", "a device can only be shared in one way"),
        ("version: v1\nsharing: {mpi: {}}", "sharing.mpi: unknown field"),
    ],
)
def test_a_file_with_a_mistake_is_refused(faults_of, text, fault):
    assert fault in "\n".join(faults_of(text))


def test_a_file_that_is_missing_or_not_yaml_is_an_input_error(read, tmp_path):
    with pytest.raises(InputError, match="not YAML"):
        read("version: [")
    with pytest.raises(InputError, match="can't be read"):
        read_sharing_config(tmp_path / "nowhere.yaml")


def test_the_device_plugins_own_file_is_read_as_it_is(read):
    rules = read("""\
version: v1
flags:
  migStrategy: mixed
  plugin: {passDeviceSpecs: true}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 10
    - name: nvidia.com/mig-1g.10gb.me
      rename: nvidia.com/small
      replicas: 4
      devices: [0:1, MIG-4b6c]
""")
    whole, part = rules.rules
    assert (whole.replicas, whole.settings) == (10, TimeSlicingSettings())
    assert whole.match == DeviceMatch(types=(DeviceType.GPU,))
    assert part.match == DeviceMatch(types=(DeviceType.MIG,), profiles=("1g.10gb.me",), ids=("0:1", "MIG-4b6c"))
    assert [note.split(" has no effect")[0] for note in rules.notes] == [
        "sharing.timeSlicing.failRequestsGreaterThanOne",
        "sharing.timeSlicing.renameByDefault",
        "sharing.timeSlicing.resources[1].rename",
    ]


@pytest.mark.parametrize(
    ("devices", "ids", "first"),
    [("all", (), None), ("2", (), 2), ("[0, 3]", ("0", "3"), None), ('["GPU-1"]', ("GPU-1",), None)],
)
def test_a_file_of_the_device_plugin_may_name_some_devices_only(read, devices, ids, first):
    text = f"version: v1\nsharing: {{mps: {{resources: [{{name: nvidia.com/gpu, replicas: 2, devices: {devices}}}]}}}}"
    (rule,) = read(text).rules
    assert (rule.match.ids, rule.match.first) == (ids, first)
    assert rule.settings == MpsSettings(multi_user=True), "it can't say which users its pods run as"


def test_one_replica_of_the_device_plugin_is_the_whole_device(read):
    first, second = read("""\
version: v1
sharing:
  timeSlicing:
    resources:
    - {name: nvidia.com/gpu, replicas: 1, devices: [0]}
    - {name: nvidia.com/gpu, replicas: 3}
""").rules
    assert (first.mode, first.replicas, first.settings, first.match.ids) == (None, None, None, ("0",))
    assert (second.mode, second.replicas) == (ShareMode.REPLICAS, 3)


@pytest.mark.parametrize(
    ("strategy", "types"),
    [("none", (DeviceType.GPU,)), ("mixed", (DeviceType.GPU,)), ("single", (DeviceType.GPU, DeviceType.MIG))],
)
def test_gpus_in_a_file_of_the_device_plugin_include_partitions_under_strategy_single(read, strategy, types):
    text = "version: v1\nflags: {migStrategy: %s}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}"
    (rule,) = read(text % strategy).rules
    assert rule.match.types == types


@pytest.mark.parametrize("flags", ["null", "{}", "{migStrategy: null, plugin: {deviceIDStrategy: index}}"])
def test_flags_of_the_device_plugin_may_be_empty(read, flags):
    (rule,) = read(f"version: v1\nflags: {flags}\nsharing: {{mps: {{resources: [{{name: gpu, replicas: 2}}]}}}}").rules
    assert rule.match.types == (DeviceType.GPU,)


def test_with_tenants_by_namespace_a_rule_with_mps_names_them(read):
    text = "version: rules/v1\nrules: [{replicas: 4, sharing: {strategy: MPS}, namespaces: [team-a, team-b]}]\n"
    found = read(text, Tenants.NAMESPACE)
    assert (found.tenants, found.rules[0].namespaces) == (Tenants.NAMESPACE, ("team-a", "team-b"))


@pytest.mark.parametrize(
    ("rule", "tenants", "fault"),
    [
        ("sharing: {strategy: MPS}", Tenants.NAMESPACE, "rules[0].namespaces: missing"),
        ("sharing: {strategy: MPS}, namespaces: []", Tenants.NAMESPACE, "rules[0].namespaces: missing"),
        ("sharing: {strategy: MPS}, namespaces: [a, a]", Tenants.NAMESPACE, "rules[0].namespaces[1]: a is listed"),
        ("sharing: {strategy: MPS}, namespaces: [A_b]", Tenants.NAMESPACE, "rules[0].namespaces[0]: expected the name"),
        ("sharing: {strategy: MPS}, namespaces: ['a\"b']", Tenants.NAMESPACE, "rules[0].namespaces[0]: expected"),
        ("sharing: {strategy: MPS}, namespaces: [a]", Tenants.ANY, "rules[0].namespaces: only goes with strategy MPS"),
        ("namespaces: [a]", Tenants.NAMESPACE, "rules[0].namespaces: only goes with strategy MPS"),
        (
            "sharing: {strategy: MPS}, namespaces: [a], acrossNamespaces: true",
            Tenants.NAMESPACE,
            "rules[0].acrossNamespaces: does not go with",
        ),
    ],
)
def test_wrong_namespaces_are_refused(faults_of, rule, tenants, fault):
    (found,) = faults_of(f"version: rules/v1\nrules: [{{replicas: 4, {rule}}}]\n", tenants)
    assert fault in found


def test_a_file_of_the_device_plugin_can_t_keep_namespaces_apart(faults_of):
    text = "version: v1\nsharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
    (found,) = faults_of(text, Tenants.NAMESPACE)
    assert "sharing: mps can't name namespaces" in found
