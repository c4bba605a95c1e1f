"""From the readings of single GPUs to the facts of the node.

Pure. In: readings, the PCI bus, and the links seen so far. Out: GPUs in PCI order with their NVLink domains, and
problems.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dra_driver.hardware.facts import Problem
from dra_driver.hardware.nvidia.facts import NvidiaGpu
from dra_driver.hardware.nvidia.reading.gpu import GpuReading
from dra_driver.hardware.nvidia.reading.links import Edge, domains
from dra_driver.hardware.nvidia.sysfs import PciFunction


def join_gpus(readings: Iterable[GpuReading], edges: Iterable[Edge]) -> tuple[NvidiaGpu, ...]:
    """Return the GPUs in PCI order, each with its links.

    `edges` are all links seen since the process began: a GPU in MIG mode, whose links are hidden, keeps its domain.
    """
    local = domains(edges)
    gpus = []
    for reading in readings:
        gpu, links = reading.facts, reading.links
        if gpu is None:
            continue
        has_links = bool(links.count) or gpu.mig_enabled
        domain = links.fabric or (local.get(gpu.pci_address) if has_links and not links.is_fabric_unknown else None)
        gpus.append(replace(gpu, nvlink_count=links.count, link_domain=domain))
    return tuple(sorted(gpus, key=lambda gpu: gpu.pci_address))


def shared_identities(readings: Iterable[GpuReading]) -> tuple[Problem, ...]:
    """Return a problem for each GPU that has the same minor or UUID as another.

    Containers can't tell such GPUs apart, and may be given the same one.
    """
    by_identity: dict[str, list[NvidiaGpu]] = {}
    for gpu in (reading.facts for reading in readings):
        if gpu is not None:
            for identity in (f"minor {gpu.minor}", f"UUID {gpu.uuid}"):
                by_identity.setdefault(identity, []).append(gpu)
    return tuple(
        Problem("hardware.identity-shared", gpu.pci_address, f"GPU reports {identity}, and so does another GPU")
        for identity, gpus in by_identity.items()
        if len(gpus) > 1
        for gpu in gpus
    )


def unreported(functions: Sequence[PciFunction], answered: Iterable[str], *, silent: int) -> tuple[Problem, ...]:
    """Return a problem for each GPU on the bus that the library does not report.

    `silent` is the number of GPUs that the library counts but whose address it did not report. They have a problem
    already, so up to as many GPUs on the bus, which may be the same ones, are not reported a second time.
    """
    known = set(answered)
    missing = [f for f in functions if f.address not in known and not f.is_virtual]
    foreign = [f for f in missing if f.driver != "nvidia"]
    driven = [f for f in missing if f.driver == "nvidia"]
    problems = [
        Problem("hardware.gpu-not-driven", f.address, f"GPU is bound to {f.driver or 'no driver'}, not to nvidia")
        for f in foreign
    ]
    if len(driven) > silent:
        problems += [
            Problem("hardware.gpu-not-reported", f.address, "GPU is on the PCI bus but the driver does not report it")
            for f in driven
        ]
    return tuple(problems)


def name_silent(
    problems: Sequence[Problem], functions: Sequence[PciFunction], answered: Iterable[str]
) -> list[Problem]:
    """Return the problems, with the address filled in where one GPU reported none and only one address is left."""
    known = set(answered)
    left = [f.address for f in functions if f.driver == "nvidia" and f.address not in known and not f.is_virtual]
    nameless = [p for p in problems if p.subject == "node"]
    if len(left) == 1 and len(nameless) == 1:
        return [replace(p, subject=left[0]) if p.subject == "node" else p for p in problems]
    return list(problems)
