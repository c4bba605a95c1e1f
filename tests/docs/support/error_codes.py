"""Every error code and problem code in the source, found by parsing it. Not covered: codes that are composed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from dra_driver.base import errors

SOURCE = Path(errors.__file__).resolve().parents[1]
BRANCHES = {
    name: kind.branch
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.DriverError) and kind is not errors.DriverError
}
_CODE = re.compile(rf"({'|'.join(sorted(set(BRANCHES.values())))})\.[a-z]+(-[a-z]+)*")
_BRANCH_OF_TABLES = {"answers": "api", "database": "ledger"}  # modules with tables of codes
_NO_CODES = {"ledger.db", "node.example", "sharing.yaml"}


def error_codes() -> dict[str, str]:
    """Return each code with the first place where it occurs."""
    found: dict[str, str] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        if "_proto" in path.parts:
            continue
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            code = ""
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BRANCHES:
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    code = f"{BRANCHES[node.func.id]}.{first.value}"
            elif isinstance(node, ast.Tuple):
                code = _code_with_retry(node, _BRANCH_OF_TABLES.get(path.stem, ""))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                code = node.value if _CODE.fullmatch(node.value) and node.value not in _NO_CODES else ""
            if code:
                found.setdefault(code, f"{path.relative_to(SOURCE)}:{node.lineno}")
    return found


def _code_with_retry(entry: ast.Tuple, branch: str) -> str:
    """Return the code of an entry such as ("forbidden", Retry.LATER, hint), "" for anything else."""
    match entry.elts:
        case [ast.Constant(value=str(code)), ast.Attribute(value=ast.Name(id="Retry")), *_]:
            return f"{branch}.{code}"
    return ""
