"""The modules that the engine imports, one on a line, where there is nothing but the standard library and PyYAML.

    python -I -S imported.py REPOSITORY PYYAML

In: the repository, and the folder of the package `yaml`. Out: the names of the modules. It fails if the engine imports
another package. RE2 is imported only when a selector contains a pattern, and in a browser that is `re2.py`.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from types import ModuleType

# Each makes the engine import what it imports only when it is needed.
SELECTORS = (
    'device.driver == "a"',
    "device.driver = 5",
    'device.attributes["a"].b.compareTo(semver("1.0.0")) > 0 && device.capacity["a"].c > quantity("1")',
    'device.attribute["gpu.nvidia.com"].productNam == "NVIDIA H100 80GB HBM3"',
)
DEVICE = ["node", "a", "pool", {"name": "one", "attributes": {"b": {"version": "2.0.0"}}}]
FLEETS = {"one": [DEVICE], "empty": []}  # without devices, advice is about the names that our drivers publish


def load_yaml(folder: Path) -> None:
    """Import PyYAML, and nothing else that lies beside it."""
    spec = spec_from_file_location("yaml", folder / "__init__.py", submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        sys.exit(f"{folder} is no package")
    sys.modules["yaml"] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def ask(answers: ModuleType, name: str, question: dict[str, str]) -> None:
    """Ask a question. Exits if it is not answered."""
    status, document = json.loads(answers.answer(name, json.dumps(question)))
    if status != 200:
        sys.exit(f"{name}: {document}")


def main(repository: str, pyyaml: Path) -> None:
    """Print the modules."""
    sys.path[:0] = [str(Path(__file__).parent), repository]
    load_yaml(pyyaml)
    answers = importlib.import_module("answers")
    for fleet, devices in FLEETS.items():
        answers.add_fleet(fleet, json.dumps({"devices": devices, "sources": [fleet], "notes": []}))
    for expression, fleet in product(SELECTORS, FLEETS):
        question = {"fleet": fleet, "kubernetes": "1.35", "expression": expression}
        ask(answers, "selector", question)
        ask(answers, "selector/completions", {**question, "before": "device."})
        if fleet == "one":
            device = {"node": "node", "driver": "a", "pool": "pool", "device": "one"}
            ask(answers, "selector/explain", {**question, **device})
    print("\n".join(sorted(sys.modules)))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
