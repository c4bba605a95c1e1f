"""Geometry: how an administrator wants GPUs cut once and for all, where nothing is cut on demand.

In: a name or a list, and a GPU's profiles. Out: the placements, or None. Pure. Names are those of NVIDIA's MIG manager:
`all-disabled`, `all-balanced`, `all-<profile>` (`all-1g.10gb`, `all-1g.10gb.me`); a list is `1g.10gb=4,3g.40gb=1`.
Source: NVIDIA mig-parted, default configurations.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from dra_driver.hardware.facts import GpuFacts, MigProfile
from dra_driver.inventory.device import Cut
from dra_driver.inventory.partitions import counters_of_cut, counters_of_gpu, cuts_of
from dra_driver.model.errors import UsageError

DISABLED, BALANCED, ALL = "all-disabled", "all-balanced", "all-"
FROM_LABEL = "label"
_ENTRY = re.compile(r"(?P<profile>[0-9]+g\.[0-9]+gb([+-][a-z.]+)?)=(?P<count>[0-9]{1,2})")
_BALANCED = {7: (3, 2, 1, 1), 4: (2, 1, 1)}  # compute slices of the GPU -> of the partitions


def check_geometry(text: str) -> str:
    """Return a flag's value if it names or lists a geometry, or is "" or "label".

    Raises: UsageError("usage.mig-geometry").
    """
    if text in ("", FROM_LABEL) or text.startswith(ALL) or _listed(text) is not None:
        return text
    raise UsageError(
        "mig-geometry",
        f"--mig-geometry={text!r} is neither label, {DISABLED}, {BALANCED}, all-PROFILE nor a list",
        hint="for example all-1g.10gb, or 1g.10gb=4,3g.40gb=1",
    )


def cuts_for(gpu: GpuFacts, geometry: str) -> tuple[Cut, ...] | None:
    """Give the placements of a geometry on a GPU, in order of start; none for `all-disabled`; None if it does not fit.

    Where there is a choice the largest partitions are placed first, each as low as it goes.
    """
    wanted = _wanted(gpu, geometry)
    if wanted is None:
        return None
    if not wanted:
        return ()
    known = cuts_of(gpu, with_all=True)
    by_profile = {name: [cut for cut in known if cut.profile.name == name] for name in wanted}
    if not all(by_profile.values()):
        return None
    order = sorted(wanted.elements(), key=lambda name: (-by_profile[name][0].profile.size, name))
    found = _place([by_profile[name] for name in order], Counter(counters_of_gpu(known)), _compute_slices(gpu))
    return None if found is None else tuple(sorted(found, key=lambda cut: cut.start))


def _place(
    choices: Sequence[Sequence[Cut]], left: Mapping[str, int], compute: int, after: Cut | None = None
) -> list[Cut] | None:
    """Place one of each; of one profile in order of start, so that equal states are tried once."""
    if not choices:
        return []
    for cut in choices[0]:
        if after is not None and cut.profile == after.profile and cut.start <= after.start:
            continue
        rest = {name: left[name] - counters_of_cut(cut).get(name, 0) for name in left}
        if cut.profile.slices <= compute and min(rest.values()) >= 0:
            others = _place(choices[1:], rest, compute - cut.profile.slices, cut)
            if others is not None:
                return [cut, *others]
    return None


def _wanted(gpu: GpuFacts, geometry: str) -> Counter[str] | None:
    if geometry == DISABLED:
        return Counter()
    if geometry == BALANCED:
        return _balanced(gpu)
    if geometry.startswith(ALL):
        profile = _profile(gpu, geometry.removeprefix(ALL))
        return Counter({profile.name: profile.max_instances}) if profile else None
    return _listed(geometry)


def _balanced(gpu: GpuFacts) -> Counter[str] | None:
    plain = [p for p in gpu.mig_profiles if "+" not in p.name and "-" not in p.name]
    least = {n: min((p for p in plain if p.slices == n), key=lambda p: p.size, default=None) for n in (1, 2, 3)}
    chosen = [least[n] for n in _BALANCED.get(_compute_slices(gpu), ())]
    if not chosen or None in chosen:
        return None
    return Counter(profile.name for profile in chosen if profile is not None)


def _profile(gpu: GpuFacts, name: str) -> MigProfile | None:
    """Look a profile up; the MIG manager writes `.me` for `+me`."""
    names = {name, re.sub(r"gb\.", "gb+", name)}
    return next((profile for profile in gpu.mig_profiles if profile.name in names), None)


def _compute_slices(gpu: GpuFacts) -> int:
    return max((profile.slices for profile in gpu.mig_profiles), default=0)


def _listed(text: str) -> Counter[str] | None:
    entries = [_ENTRY.fullmatch(entry.strip()) for entry in text.split(",")]
    if any(entry is None for entry in entries):
        return None
    counted: Counter[str] = Counter()
    for entry in entries:
        if entry is not None:
            counted[entry["profile"]] += int(entry["count"])
    return counted
