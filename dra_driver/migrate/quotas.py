"""ResourceQuotas: counts of the device plugin's resources become counts of devices of a class.

In: a ResourceQuota, changed in place. MIG profiles get no quotas of their own, since one class hands out all profiles;
that is reported.

Source: Kubernetes, ResourceQuota: `requests.<resource>` counts an extended resource, and
`<class>.deviceclass.resource.k8s.io/devices` the devices that claims request of a class.
"""

from __future__ import annotations

from typing import Any

from dra_driver.migrate.device_kind import DeviceKind
from dra_driver.migrate.report import ReportSubject
from dra_driver.migrate.resources import QUOTA, Known, kind_of, whole_number

_DEVICES = "deviceclass.resource.k8s.io/devices"


def migrate_quota(wire: dict[str, Any], known: Known, subject: ReportSubject) -> None:
    """Migrate a quota in place. Raises: InputError if a count is not a whole number."""
    spec = wire.get("spec")
    hard = spec.get("hard") if isinstance(spec, dict) else None
    if not isinstance(hard, dict):
        return
    found = _counted(hard, known, subject)
    if not found:
        return
    sums: dict[str, int] = {}
    for name, (kind, count) in found.items():
        if name.startswith(QUOTA) and not kind.is_monitor:
            key = f"{kind.device_class}.{_DEVICES}"
            sums[key] = sums.get(key, 0) + count
    made = _replaced(hard, found, sums, subject)
    _report_profiles(found, subject)
    hard.clear()
    hard.update(made)


def _replaced(
    hard: dict[str, Any], found: dict[str, tuple[DeviceKind, int]], sums: dict[str, int], subject: ReportSubject
) -> dict[str, Any]:
    """Return all counts of the quota, the new ones in the places of the old ones."""
    made: dict[str, Any] = {}
    for name, amount in hard.items():
        if name not in found:
            made[name] = amount
            continue
        kind, count = found[name]
        key = f"{kind.device_class}.{_DEVICES}"
        if kind.is_monitor:
            _report_monitor(name, subject)
        elif not name.startswith(QUOTA):
            _report_no_limit(name, subject)
        elif key in hard:
            _report_there(name, key, subject)
        else:
            made.setdefault(key, sums[key] if isinstance(amount, int) else str(sums[key]))
            _report_count(name, count, key, sums[key], subject)
    return made


def _counted(hard: dict[str, Any], known: Known, subject: ReportSubject) -> dict[str, tuple[DeviceKind, int]]:
    """Return the counts of the device plugin's resources, each with the kind of device."""
    found = {}
    for name, amount in hard.items():
        kind = kind_of(name.removeprefix(QUOTA).removeprefix("limits."), known)
        if kind is not None:
            found[name] = kind, whole_number(amount, f"{subject.name}: spec.hard: {name}")
    return found


def _report_count(name: str, count: int, key: str, total: int, subject: ReportSubject) -> None:
    more = "" if count == total else f" (with others of the class: {total})"
    subject.changed(
        "quota",
        f"{name}: {count} became {key}{more}",
        "a quota on the resource does not count claims; this one counts the devices that claims ask for",
        "spec",
        "hard",
    )


def _report_there(name: str, key: str, subject: ReportSubject) -> None:
    subject.changed("quota", f"{name} was taken out", f"the quota already has {key}", "spec", "hard")


def _report_no_limit(name: str, subject: ReportSubject) -> None:
    why = "quotas of such resources are written requests.<name>; this one never counted anything"
    subject.changed("quota", f"{name} was taken out", why, "spec", "hard")


def _report_monitor(name: str, subject: ReportSubject) -> None:
    why = "a claim with admin access holds no device; a label of the namespace decides whether it may have such claims"
    subject.changed("quota", f"{name} was taken out", why, "spec", "hard")


def _report_profiles(found: dict[str, tuple[DeviceKind, int]], subject: ReportSubject) -> None:
    profiles = sorted({kind.profile for kind, _ in found.values() if kind.profile and not kind.is_monitor})
    if profiles:
        subject.lost(
            "quota-profile",
            f"one class hands out all profiles: the quota of {', '.join(profiles)} counts devices of any profile",
            "for a quota per profile, create a DeviceClass for each profile and name it in the claims",
            "spec",
            "hard",
        )
