"""The remediation policy: every mistake in a file is reported at once; and which action a fault gets."""

from pathlib import Path

import pytest

from dra_driver.base.errors import InputError
from dra_driver.node.health.cases import (
    DEFAULT_ACTIONS,
    WEEK_SECONDS,
    ActionRow,
    CommandRoot,
    PeerRule,
    RemediationAction,
    RemediationCase,
    RemediationPolicy,
    SiteCommand,
    Stage,
    spent,
)
from dra_driver.node.health.faults import FaultKey
from dra_driver.node.health.policy_files import read_remediation_policy
from dra_driver.node.health.recovery import choose_action
from tests.node.health.remediation.support.parts import ONE, TWO, fault, gpu

NONE, RESET, REBOOT, COMMAND = RemediationAction


def read(tmp_path, text):
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    return read_remediation_policy(path)


def case(**more):
    values = {
        "gpu": ONE,
        "uuid": "GPU-a",
        "key": FaultKey.NEEDS_RESET,
        "value": "gpu-reset",
        "since": 1.0,
        "began": 2.0,
    }
    return RemediationCase(**values, stage=Stage.DRAIN_ASKED, stage_at=3.0, action=RESET, **more)


def test_a_file_changes_what_it_names_and_nothing_else(tmp_path):
    text = """
version: remediation/v1
actions: {row-remap-pending: reset, gpu-lost: command, needs-attention: reboot}
tries: 1
weekly: {gpu: 4}
nodes: 3
peers: never
reset: {timeout: 5m}
reboot: {file: /var/run/reboot-required, within: 2h}
command: {argv: [/opt/site/repair, "--gpu={uuid}", "{pci}"], timeout: 1h, root: driver}
"""
    found = read(tmp_path, text)
    assert found == RemediationPolicy(
        {
            **DEFAULT_ACTIONS,
            FaultKey.ROW_REMAP_PENDING: RESET,
            FaultKey.GPU_LOST: COMMAND,
            FaultKey.NEEDS_ATTENTION: REBOOT,
        },
        nodes=3,
        tries=1,
        weekly_gpu=4,
        peers=PeerRule.NEVER,
        reset_timeout_s=300.0,
        reboot_within_s=7200.0,
        reboot_file=Path("/var/run/reboot-required"),
        command=SiteCommand(("/opt/site/repair", "--gpu={uuid}", "{pci}"), 3600.0, CommandRoot.DRIVER),
    )
    assert found.command.argv_for("GPU-a", ONE) == ("/opt/site/repair", "--gpu=GPU-a", ONE)
    assert read(tmp_path, "version: remediation/v1") == RemediationPolicy()


def test_every_mistake_is_listed_with_its_line(tmp_path):
    text = """
version: remediation/v1
actions:
  gpu-lost: reset
  thermal: reboot
  cordoned: none
  needs-reset: command
  ecc: reset
tries: 9
nodes: 0
weekly: {gpus: 3}
peers: maybe
reset: {timeout: 1s}
reboot: {file: run/reboot, within: 1m}
colour: red
"""
    with pytest.raises(InputError) as refused:
        read(tmp_path, text)
    message = str(refused.value)
    assert refused.value.code == "input.remediation-policy"
    for expected in (
        "a reset does not cure gpu-lost",
        "no action cures thermal",
        "there is no section `command`",
        "actions.ecc",
        "tries",
        "nodes",
        "weekly.gpus",
        "auto, always or never",
        "reset.timeout",
        "'run/reboot' is not an absolute path",
        "reboot.within",
        "colour",
        "line 4",
    ):
        assert expected in message, expected
    assert "no action cures cordoned" not in message


@pytest.mark.parametrize(
    ("command", "mistake"),
    [
        ("{argv: []}", "argv"),
        ("{argv: [repair]}", "not an absolute path"),
        ("{argv: /opt/repair}", "argv"),
        ("{argv: [/opt/repair], root: host}", "agent or driver"),
        ("{argv: [/opt/repair], shell: true}", "shell"),
        ('{argv: ["/opt/repair", "a\\0b"]}', "NUL"),
    ],
)
def test_a_mistake_in_the_command_is_named(tmp_path, command, mistake):
    with pytest.raises(InputError, match=mistake):
        read(tmp_path, f"version: remediation/v1\ncommand: {command}\n")


@pytest.mark.parametrize(
    ("key", "value", "action"),
    [
        (FaultKey.NEEDS_RESET, "gpu-reset", RESET),
        (FaultKey.NEEDS_RESET, "drain-and-reset", RESET),
        (FaultKey.NEEDS_RESET, "xid-95", RESET),
        (FaultKey.NEEDS_RESET, "bus-reset", REBOOT),
        (FaultKey.NEEDS_REBOOT, "node-reboot", REBOOT),
        (FaultKey.GPU_LOST, "", REBOOT),
        (FaultKey.ECC_UNCORRECTABLE, "", RESET),
        (FaultKey.NEEDS_ATTENTION, "recover-imex-domain", None),
        (FaultKey.ROW_REMAP_FAILED, "", None),
        (FaultKey.ROW_REMAP_PENDING, "", None),
        (FaultKey.THERMAL, "", None),
        (FaultKey.UNMONITORED, "", None),
    ],
)
def test_each_fault_has_a_default_action_or_none(key, value, action):
    found = choose_action(gpu(), [fault(key, value)], RemediationPolicy())
    assert (found and found.action) == action


def test_the_most_important_fault_decides_and_a_mild_one_does_not():
    faults = [fault(FaultKey.NEEDS_RESET), fault(FaultKey.GPU_LOST), fault(FaultKey.NEEDS_REBOOT, address=TWO)]
    assert choose_action(gpu(), faults, RemediationPolicy()).fault.key is FaultKey.GPU_LOST
    mild = fault(FaultKey.ECC_UNCORRECTABLE, is_mild=True)
    assert choose_action(gpu(), [mild], RemediationPolicy()) is None
    assert choose_action(gpu("0000:99:00.0"), faults, RemediationPolicy()) is None


@pytest.mark.parametrize(
    ("value", "architecture", "rule", "has_peers"),
    [
        ("gpu-reset", "Hopper", PeerRule.AUTO, False),
        ("gpu-reset", "Volta", PeerRule.AUTO, True),
        ("drain-p2p", "Hopper", PeerRule.AUTO, True),
        ("gpu-reset", "Hopper", PeerRule.ALWAYS, True),
        ("drain-p2p", "Volta", PeerRule.NEVER, False),
    ],
)
def test_linked_gpus_are_drained_if_the_fault_the_architecture_or_the_policy_requires_it(
    value, architecture, rule, has_peers
):
    linked = [gpu(one, link_domain="a", architecture=architecture) for one in (ONE, TWO)]
    others = [gpu("0000:99:00.0", link_domain="b"), gpu("0000:9a:00.0")]
    policy = RemediationPolicy(peers=rule)
    found = choose_action(linked[0], [fault(FaultKey.NEEDS_RESET, value)], policy, [*linked, *others])
    assert found.peers == ((TWO,) if has_peers else ())
    assert found.awaits_driver is (value == "drain-p2p")


def test_two_tries_and_the_weekly_budgets_end_a_treatment():
    policy, now = RemediationPolicy(weekly_gpu=3, weekly_node=5), 10 * WEEK_SECONDS
    rows = [ActionRow(now - 10, "GPU-a", "reset"), ActionRow(now - WEEK_SECONDS - 1, "GPU-a", "reset")]
    assert spent(case(tries=1), rows, policy, now) == ""
    assert "needs-reset was remediated 2 times" in spent(case(tries=2), rows, policy, now)
    assert "the GPU was remediated 3 times" in spent(case(), [rows[0]] * 3, policy, now)
    others = [ActionRow(now - 10, f"GPU-{number}", "reset") for number in range(5)]
    assert "5 treatments on this node" in spent(case(), others, policy, now)
