"""Claims whose selectors take long to judge, and the processes that work on questions about them."""

from __future__ import annotations

from pathlib import Path

NINE = "[1,2,3,4,5,6,7,8,9]"
SLOW = "a + b + c + d + e + f + g > {number}"
for name in "gfedcba":
    SLOW = f"{NINE}.all({name}, {SLOW})"
CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: slow-{number}}}
spec:
  devices:
    requests:
    - name: gpu
      exactly: {{deviceClassName: gpu.nvidia.com, selectors: [{{cel: {{expression: "{slow}"}}}}]}}
"""


def children_of(*parents: int) -> set[int]:
    """Return the processes that run and whose parent is one of these."""
    found = set()
    for one in Path("/proc").iterdir():
        if one.name.isdigit():
            try:
                state, parent = (one / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:  # it has ended meanwhile
                continue
            if int(parent) in parents and state != "Z":
                found.add(int(one.name))
    return found
