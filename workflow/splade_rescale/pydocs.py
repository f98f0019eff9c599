"""The embedded data set: docstrings of installed Python packages.

A query is the summary of a docstring, its one relevant document the rest of the same docstring.
The sources are parsed, never imported. Which files belong to a package is read from its own
installation record, so nothing else that is installed changes the data.
"""

import ast
import gc
import hashlib
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path, PurePosixPath

import pandas as pd

from splade_rescale.errors import UserError
from splade_rescale.settings import PydocsDataset

STANDARD_LIBRARY = "stdlib"
"""Name that stands for the standard library in a list of distributions."""

IN_DOMAIN = (
    "accelerate",
    "datasets",
    "huggingface-hub",
    "matplotlib",
    "numpy",
    "pandas",
    "scikit-learn",
    "scipy",
    "sqlalchemy",
    "torch",
    "transformers",
)
"""Distributions of the training rows and of the in-domain test."""

OUT_OF_DOMAIN = ("networkx", "sympy", STANDARD_LIBRARY)
"""Distributions never trained on. The standard library is here, and not among the training
packages, so that another patch release of Python cannot change what is trained on."""

OPTIONAL_LIBRARY = frozenset(
    {"distutils", "ensurepip", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo", "venv"}
)
"""Parts of the standard library that some systems install apart from Python, or not at all."""

SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "testing", "conftest", "_vendor", "vendor", "_external", "externals"}
)
"""Parts of a module's path that hold tests or copies of other packages."""

QUERY_WORDS = (4, 32)
"""Fewest and most words of a summary."""

DOCUMENT_WORDS = 15
"""Fewest words of the rest of a docstring."""


def build(entry: PydocsDataset) -> dict[str, pd.DataFrame]:
    """Build the frames of one pydocs data set.

    Returns:
        `corpus` (doc_id, title, text), `queries` (query_id, text), `qrels` (query_id, doc_id,
        relevance) and `train` (query, positive); `train` has no rows out of domain. A doc_id is
        the qualified name of what the docstring documents, its query_id the same with `q-` in
        front. Titles are empty: the name would give the answer away.

    The order of all pairs is that of a hash of seed and qualified name. The first
    `entry.documents` make the corpus, the first `entry.queries` of these are judged, and up to
    `entry.train_pairs` of those after the corpus are the training rows.

    Raises:
        UserError: a distribution is not installed, a file of it cannot be read, or the pairs are
            too few for the entry.
    """
    if entry.queries > entry.documents:
        raise UserError(
            f"pydocs: queries is {entry.queries}, but each needs a document of its own and "
            f"documents is {entry.documents}"
        )
    in_domain = entry.split == "in-domain"
    embedded = IN_DOMAIN if in_domain else OUT_OF_DOMAIN
    pairs = shuffled(collect(embedded if entry.packages is None else entry.packages), entry.seed)
    needed = entry.documents + (in_domain and entry.train_pairs > 0)
    if len(pairs) < needed:
        raise UserError(
            f"pydocs: the packages give {len(pairs)} pairs, but {needed} are needed "
            f"(documents: {entry.documents}, and at least one training row if there are any); "
            "lower documents or name more packages"
        )
    held_out, rest = pairs[: entry.documents], pairs[entry.documents :]
    judged = held_out[: entry.queries]
    train = rest[: entry.train_pairs] if in_domain else rest[:0]
    return {
        "corpus": pd.DataFrame(
            {
                "doc_id": held_out["doc_id"],
                "title": pd.Series("", held_out.index, dtype=held_out["doc_id"].dtype),
                "text": held_out["document"],
            }
        )
        .sort_values("doc_id")
        .reset_index(drop=True),
        "queries": pd.DataFrame({"query_id": "q-" + judged["doc_id"], "text": judged["query"]}),
        "qrels": pd.DataFrame(
            {"query_id": "q-" + judged["doc_id"], "doc_id": judged["doc_id"], "relevance": 1}
        ),
        "train": train[["query", "document"]]
        .rename(columns={"document": "positive"})
        .reset_index(drop=True),
    }


def collect(packages: tuple[str, ...] | list[str]) -> pd.DataFrame:
    """All pairs of the packages: columns package, doc_id, query, document; ordered by doc_id.

    Of pairs with an equal summary or an equal document (case and spacing aside) the first by
    doc_id is kept, and pairs whose document repeats the summary word by word are dropped.

    Raises:
        UserError: a distribution is not installed, or a file of it cannot be read.
    """
    found: dict[str, tuple[str, str, str]] = {}
    with _paused_garbage_collection():
        for package in sorted(packages):
            for module, path in sorted(source_files(package)):
                for name, docstring in docstrings(path, module):
                    pair = split_docstring(docstring)
                    if pair:
                        found.setdefault(name, (package, *pair))
    rows, queries, documents = [], set(), set()
    for name, (package, query, document) in sorted(found.items()):
        query_key, document_key = _normal(query), _normal(document)
        if query_key in queries or document_key in documents or query_key in document_key:
            continue
        queries.add(query_key)
        documents.add(document_key)
        rows.append((package, name, query, document))
    return pd.DataFrame(rows, columns=["package", "doc_id", "query", "document"], dtype="str")


@contextmanager
def _paused_garbage_collection() -> Iterator[None]:
    """Collections over syntax trees, which hold no cycles, take half the time of parsing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def shuffled(pairs: pd.DataFrame, seed: int) -> pd.DataFrame:
    """The pairs in the order of the SHA-256 of seed and doc_id, with a fresh index."""
    keys = [hashlib.sha256(f"{seed}:{name}".encode()).digest() for name in pairs["doc_id"]]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return pairs.iloc[order].reset_index(drop=True)


def split_docstring(docstring: str) -> tuple[str, str] | None:
    """Summary (first paragraph on one line) and rest of a dedented docstring.

    None where there is no rest or a part is out of the bounds QUERY_WORDS and DOCUMENT_WORDS.
    """
    summary, _, rest = docstring.partition("\n\n")
    words, document = summary.split(), rest.strip()
    if not QUERY_WORDS[0] <= len(words) <= QUERY_WORDS[1]:
        return None
    return (" ".join(words), document) if len(document.split()) >= DOCUMENT_WORDS else None


def docstrings(path: Path, module: str) -> Iterator[tuple[str, str]]:
    """Qualified name and dedented docstring of the module, its classes, functions and methods.

    What is defined inside functions is left out. A file that this Python cannot parse (templates,
    sources for another version) has none.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's strings
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # ValueError: null bytes, before Python 3.11.4
        return
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror or error}); install its package again"
        ) from None
    yield from _docstrings(tree, module)


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        # A lone surrogate is legal in a Python string, but not in the UTF-8 of the data files.
        if docstring and _encodable(docstring):
            yield name, docstring
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
        return
    for child in ast.iter_child_nodes(node):
        inner = getattr(child, "name", None) if isinstance(child, _NAMED) else None
        yield from _docstrings(child, f"{name}.{inner}" if inner else name)


_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def source_files(package: str) -> Iterator[tuple[str, Path]]:
    """Dotted module name and path of each Python source of a distribution, in no set order.

    Raises:
        UserError: the distribution is not installed or keeps no record of its files.
    """
    if package == STANDARD_LIBRARY:
        root = Path(sysconfig.get_path("stdlib"))
        files = {
            PurePosixPath(path.relative_to(root).as_posix()): path
            for name in sys.stdlib_module_names - OPTIONAL_LIBRARY
            for path in [root / f"{name}.py", *(root / name).rglob("*.py")]
            if path.is_file()
        }
    else:
        try:
            distribution = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            distribution = None
        if distribution is None or distribution.files is None:
            raise UserError(
                f"pydocs: distribution {package!r} is not installed with a record of its files; "
                "install what envs/requirements.txt pins, or list other packages"
            )
        files = {
            PurePosixPath(file): Path(str(distribution.locate_file(file)))
            for file in distribution.files
            if file.suffix == ".py"
        }
    for file, path in files.items():
        parts = file.with_suffix("").parts
        if not SKIPPED_FOLDERS.isdisjoint(parts):
            continue
        if parts[-1].startswith("test_") or not all(part.isidentifier() for part in parts):
            continue
        yield ".".join(parts[:-1] if parts[-1] == "__init__" and parts[1:] else parts), path


def _normal(text: str) -> str:
    return " ".join(text.lower().split())
