"""A digest of the code that a stage runs.

Rules carry it as a parameter, so Snakemake reruns a stage when the code that computes it
changes, and only then: comments, docstrings and formatting do not count, and editing the
evaluation does not retrain.
"""

import ast
import hashlib
from functools import cache
from pathlib import Path

PACKAGE = "splade_rescale"
#: Modules whose effect on a result is in the parameters of its rule, not in their code.
INTERFACE = frozenset(
    {"cli", "config", "settings", "loss_table", "errors", "files", "checksums", "digest"}
)


@cache
def _module(name: str) -> tuple[str, frozenset[str]]:
    """Return the module's code without comments and docstrings, and what it imports at the top."""
    path = Path(__file__).with_name(f"{name}.py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            if node.module == PACKAGE:
                imported.update(alias.name for alias in node.names)
            elif node.module.startswith(f"{PACKAGE}."):
                imported.add(node.module.removeprefix(f"{PACKAGE}."))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        node.body = [
            part
            for part in body
            if not (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            )
        ]
    return ast.dump(tree), frozenset(imported)


def code_digest(*modules: str) -> str:
    """Return a short hash of `modules` and all modules of the package that they import.

    Only imports at the top of a module are followed; one inside a function is a choice between
    stages, and the caller names the module that is chosen.
    """
    todo, seen = list(modules), set()
    while todo:
        name = todo.pop()
        if name not in seen and name not in INTERFACE:
            seen.add(name)
            todo.extend(_module(name)[1])
    joined = "\n".join(f"{name}:{_module(name)[0]}" for name in sorted(seen))
    return hashlib.sha256(joined.encode()).hexdigest()[:16]
