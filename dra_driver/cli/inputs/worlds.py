"""The world that the options of a command select, and the rules that apply to it.

In: click's parameters `files`, `profiles`, `kubernetes`, `gates`, `mig`, and those of `access`. Out: a `World`, read
with a progress line, and its rules; texts about objects of a cluster that could not be read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.cli.inputs.access import access_of
from dra_driver.cli.inputs.gates import given_gates
from dra_driver.cli.inputs.progress import TerminalProgress
from dra_driver.cli.output import printable
from dra_driver.views.access import unseen_sentences
from dra_driver.views.worlds.reading import EVERYTHING, WantedObjects, world_of_cluster, world_of_files
from dra_driver.views.worlds.rules import DEFAULT_VERSION, AppliedRules, apply_rules
from dra_driver.views.worlds.simulated_nodes import add_profiles
from dra_driver.views.worlds.world import World


def read_world(files: Sequence[str], given: Mapping[str, Any], wanted: WantedObjects = EVERYTHING) -> World:
    """Read the files; without files and profiles, the wanted objects of the cluster.

    Raises: InputError, ApiError.
    """
    if files or given["profiles"]:
        return world_of_files(files, TerminalProgress)
    return world_of_cluster(access_of(given), TerminalProgress, wanted)


def print_unseen(world: World) -> None:
    """Print to standard error which objects of a cluster could not be read, with one line for each missing role."""
    for one in unseen_sentences(world.unseen):
        print(printable(f"dra-driver: {one}"), file=sys.stderr)


def apply_options(world: World, given: Mapping[str, Any], profiles: Sequence[str]) -> AppliedRules:
    """Apply the options to a world: return the rules, and add simulated nodes. Raises: UsageError, InputError."""
    gates = given_gates(given["gates"], given["kubernetes"] or world.kubernetes or DEFAULT_VERSION)
    rules = apply_rules(world, given["kubernetes"], gates, given["mig"])
    add_profiles(world, profiles)
    return rules
