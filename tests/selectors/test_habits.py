"""What people bring along from other systems is told with the words to write."""

from __future__ import annotations

import pytest

from dra_driver.selectors.advice.findings import LintSubject
from dra_driver.selectors.advice.lint import guarded_remedy, lint
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.selectors.kubernetes import KubernetesEngine
from dra_driver.tools.world.fleet import fleet_of_profile

ENGINE = KubernetesEngine("1.35")
DRIVER = 'device.driver == "gpu.nvidia.com"'
A, C = 'device.attributes["gpu.nvidia.com"]', 'device.capacity["gpu.nvidia.com"]'
AT = f"{C}.memory.compareTo"
VIEWS = [
    prepare_device(device.wire, device.driver)
    for profile in ("dgx-h100", "l40s")
    for device in fleet_of_profile(profile).devices
]
OF_DEVICES = VIEWS[:1] + VIEWS[-1:]


@pytest.mark.parametrize(
    ("expression", "words", "better"),
    [
        (f"{AT}(quantity('40')) >= 0", "did you mean 40Gi?", f'{AT}(quantity("40Gi")) >= 0'),
        (f"{C}.memory.isLessThan(quantity('40960'))", "40Gi?", f'{C}.memory.isLessThan(quantity("40Gi"))'),
        (f"quantity('40960').compareTo({C}.memory) < 0", "40Gi?", f'quantity("40Gi").compareTo({C}.memory) < 0'),
        (f"{C}.memory.compareTo(quantity('500')) > 0", "500Gi?", f'{C}.memory.compareTo(quantity("500Gi")) > 0'),
        (f"{C}.memory.compareTo(quantity('1Mi')) >= 0", None, None),
        (
            f'{DRIVER} && {A}.type == "gpu" || {A}.brand == "X"',
            "&& binds stronger than ||",
            f'{DRIVER} && ({A}.type == "gpu" || {A}.brand == "X")',
        ),
        (f'({DRIVER} && {A}.type == "gpu") || {A}.type == "gpu"', None, None),
        (f'{DRIVER} && {A}.type == "mig" || {DRIVER} && {A}.type == "gpu"', None, None),
        (
            f'semver({A}.driverVersion).isGreaterThan(semver("1.0.0"))',
            "is a version already: leave semver() out",
            f'{A}.driverVersion.isGreaterThan(semver("1.0.0"))',
        ),
        (f"{A}.productName && true", "productName is a text, not true or false", None),
        (f"{C}.memory && true", "memory is a quantity, not true or false", None),
        (f'{AT}(quantity("4Gi"))', "compareTo gives -1, 0 or 1", f'{AT}(quantity("4Gi")) >= 0'),
        (f"{A}.?nvlinkCount == 4", "write .orValue(0) behind it", f"{A}.?nvlinkCount.orValue(0) == 4"),
        (f"{A}.?nvlinkCount == 0", "write .orValue(-1) behind it", f"{A}.?nvlinkCount.orValue(-1) == 0"),
        (f'{A}.?type == "gpu"', 'write .orValue("") behind it', f'{A}.?type.orValue("") == "gpu"'),
        (
            f'{A}.productName == "NVIDIA-H100-80GB-HBM3"',
            'but "NVIDIA H100 80GB HBM3"; labelProduct has "NVIDIA-H100-80GB-HBM3"',
            f'{A}.productName == "NVIDIA H100 80GB HBM3"',
        ),
        (f'{A}.productName == "H100"', "has it: .contains(…) searches", None),
        (f'{A}.productName in ["H100"]', "has it: .contains(…) searches", None),
        ('device.driver == "nvidia.com/gpu"', "the resource of a device plugin: the driver is gpu.nvidia.com", DRIVER),
        ('device.driver == "amd.com/gpu"', "the driver is gpu.amd.com", 'device.driver == "gpu.amd.com"'),
        ('device.driver == "habana.ai/gaudi"', "the driver is gaudi.intel.com", 'device.driver == "gaudi.intel.com"'),
        ('device.driver == "nvidia"', "is not the name of a driver: the driver is gpu.nvidia.com", DRIVER),
        ('device.driver == "gpu.amd.com"', None, None),
        ('device.driver == "dra.example.com"', None, None),
        ('device.attributes.gpu == "x"', '"gpu" is neither a domain nor a name here', None),
        ('device.attributes["gpu"].type == "gpu"', "type is an attribute of gpu.nvidia.com", f'{A}.type == "gpu"'),
        ('device.name == "gpu-0"', "a selector does not see name: uuid tells", f'{A}.uuid == "gpu-0"'),
        ('device.node == "n1"', "choose nodes with the pod's nodeSelector", None),
        ('Device.driver == "gpu.nvidia.com"', "the variable is written device, not Device", DRIVER),
        ('device["driver"] == "gpu.nvidia.com"', "device has fields, no keys", DRIVER),
        (f'{A}.type.string == "gpu"', "leave .string out", None),
        (f'{C}.memory.value == quantity("1Gi")', "leave .value out", f'{C}.memory == quantity("1Gi")'),
        ('device.basic.attributes["gpu.nvidia.com"].type == "gpu"', "leave .basic out", f'{A}.type == "gpu"'),
        (f'{A}.productName.toLowerCase() == "x"', "write lowerAscii", f'{A}.productName.lowerAscii() == "x"'),
        (f'{A}.productName.startswith("x")', "write startsWith", f'{A}.productName.startsWith("x")'),
        (f'{A}.productName.matches("*H100*")', "a pattern of RE2", f'{A}.productName.matches("H100")'),
        (f"{A}.uuid == null", "is tested with !has(", f"!has({A}.uuid)"),
        (f"{DRIVER};", "ends without a semicolon", DRIVER),
        ("device.driver == {{ .Values.driver }}", "render it first (helm template)", None),
        (f'if {DRIVER} then true else false', "CONDITION ? VALUE : OTHER", None),
        (f'has({A}["type"])', "has() takes a field", f"has({A}.type)"),
    ],
)  # fmt: skip
def test_a_habit_is_told_with_the_words_to_write(expression, words, better):
    remedy = guarded_remedy(expression, ENGINE, OF_DEVICES)
    told = " ".join(remedy.sentences) if remedy else ""
    if words is None:
        assert not told
    else:
        assert words in told
        if better is not None:
            assert remedy.better == better


@pytest.mark.parametrize(
    "expression",
    [
        f"{A}.productName && true",
        f"{DRIVER} && {C}.memory.compareTo(quantity('40')) >= 0",
        f'{DRIVER} && {A}.type == "gpu" || {A}.brand == "X"',
    ],
)
def test_what_may_be_meant_otherwise_is_proposed_and_never_applied(expression):
    subject = LintSubject(ENGINE.compile(expression), ENGINE, OF_DEVICES, [1] * len(OF_DEVICES))
    proposals = [finding for finding in lint(subject) if finding.fix]
    assert proposals
    assert not any(finding.is_safe for finding in proposals)
