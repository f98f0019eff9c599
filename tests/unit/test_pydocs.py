import gc
import hashlib
import sys
from pathlib import Path

import pytest
from splade_rescale.config import Registry, read_yaml, validate
from splade_rescale.errors import UserError
from splade_rescale.pydocs import (
    IN_DOMAIN,
    OUT_OF_DOMAIN,
    build,
    collect,
    docstrings,
    source_files,
    split_docstring,
)
from splade_rescale.settings import PydocsDataset

BODY = " ".join(f"word{i}" for i in range(15))


def text(name, body=None):
    """A docstring with summary and body of its own."""
    return f"Say what {name} does.\n\n    {body or f'{name} ' + BODY}\n    "


def function(name, docstring=None):
    return f'def {name}():\n    """{docstring or text(name)}"""\n'


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function: distribution name, {file: source} -> installed as pip does, with a record."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(name, sources, *, record=True):
        for file, source in sources.items():
            path = site / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source if isinstance(source, bytes) else source.encode())
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        if record:
            (info / "RECORD").write_text("".join(f"{file},,\n" for file in sources))
        return site

    return make


def entry(packages, **keys):
    keys = {"split": "in-domain", "documents": 6, "queries": 4, "train_pairs": 100} | keys
    return PydocsDataset(source="pydocs", packages=packages, **keys)


def many(count, prefix="f"):
    return "".join(function(f"{prefix}{i:02}") for i in range(count))


@pytest.mark.parametrize(
    ("docstring", "parts"),
    [
        (f"One two three four.\n\n{BODY}", ("One two three four.", BODY)),
        (f"One two\nthree   four.\n\n\n{BODY}\n", ("One two three four.", BODY)),
        (
            f"One two three four\n\nArgs:\n    x: it\n\n{BODY}",
            ("One two three four", f"Args:\n    x: it\n\n{BODY}"),
        ),
        (f"{'w ' * 32}\n\n{BODY}", (("w " * 32).strip(), BODY)),
        (f"{'w ' * 33}\n\n{BODY}", None),
        (f"One two three.\n\n{BODY}", None),
        (f"One two three four.\n{BODY}", None),
        ("One two three four.\n\n" + BODY.rpartition(" ")[0], None),
        ("One two three four.", None),
        ("", None),
    ],
)
def test_a_docstring_is_split_after_its_first_paragraph(docstring, parts):
    assert split_docstring(docstring) == parts


def test_docstrings_of_a_file(tmp_path):
    path = tmp_path / "m.py"
    path.write_text(
        '''"""Module."""
import no_such_module
raise SystemExit("imported")
class A:
    """Class
    in

      lines.
    """
    def method(self):
        """Method."""
        def inner():
            """Inner function."""
        class Local:
            """Inner class."""
    @property
    async def later(self): "Async method."
    class B:
        def deep(self): "Deep."
if True:
    try:
        def guarded(): "Guarded."
    except Exception:
        def other(): "Other."
def none(): pass
def surrogate(): "\\ud800 cannot be encoded."
def escape(): "An invalid \\\\ escape \\d."
x = lambda: "no docstring"
'''
    )
    assert list(docstrings(path, "pkg.m")) == [
        ("pkg.m", "Module."),
        ("pkg.m.A", "Class\nin\n\n  lines."),
        ("pkg.m.A.method", "Method."),
        ("pkg.m.A.later", "Async method."),
        ("pkg.m.A.B.deep", "Deep."),
        ("pkg.m.guarded", "Guarded."),
        ("pkg.m.other", "Other."),
        ("pkg.m.escape", "An invalid \\ escape \\d."),
    ]


@pytest.mark.parametrize("source", [b"print 'python 2'", b"x = '\xff'", b"\0", b"def {{x}}(): 1"])
def test_a_file_that_is_no_python_has_no_docstrings(tmp_path, source):
    path = tmp_path / "m.py"
    path.write_bytes(b'"""Module."""\n' + source)
    assert list(docstrings(path, "m")) == []


def test_sources_are_those_of_the_record_without_tests_and_copies(install):
    good = ["pkg/__init__.py", "pkg/a.py", "pkg/sub/b.py", "pkg/pytest_plugin.py", "single.py"]
    bad = [
        "pkg/tests/c.py",
        "pkg/sub/test/__init__.py",
        "pkg/testing/c.py",
        "pkg/test_c.py",
        "pkg/conftest.py",
        "pkg/_vendor/other/c.py",
        "pkg/sub/externals/c.py",
        "pkg/a-template.py",
        "pkg/data-1/c.py",
        "../outside.py",
        "pkg/a.pyi",
        "pkg/data.txt",
    ]
    site = install("pkg", dict.fromkeys(good + bad, ""))
    (site / "pkg/unrecorded.py").write_text("")
    assert sorted(source_files("pkg")) == [
        ("pkg", site / "pkg/__init__.py"),
        ("pkg.a", site / "pkg/a.py"),
        ("pkg.pytest_plugin", site / "pkg/pytest_plugin.py"),
        ("pkg.sub.b", site / "pkg/sub/b.py"),
        ("single", site / "single.py"),
    ]


def test_the_standard_library_without_tests_and_parts_that_may_be_missing():
    found = dict(source_files("stdlib"))
    assert {"ast", "json", "json.decoder", "asyncio.tasks", "unittest.mock"} <= found.keys()
    assert all(Path(path).is_file() for path in found.values())
    tops = {name.partition(".")[0] for name in found}
    assert tops <= sys.stdlib_module_names  # site-packages lie in the same folder
    assert not tops & {"test", "tkinter", "turtle", "distutils", "ensurepip", "idlelib", "venv"}


def test_pairs_are_collected_without_importing(install):
    raising = 'raise SystemExit("imported")\n'
    source = raising + function("short", "Too short.") + function("second") + function("first")
    install("pkg", {"pkg/__init__.py": f'"""{text("pkg")}"""\n{raising}', "pkg/m.py": source})
    pairs = collect(["pkg"])
    assert not sys.modules.keys() & {"pkg", "pkg.m"}
    assert gc.isenabled()
    assert pairs.to_dict("records") == [
        {
            "package": "pkg",
            "doc_id": name,
            "query": f"Say what {name.rpartition('.')[2]} does.",
            "document": f"{name.rpartition('.')[2]} {BODY}",
        }
        for name in ("pkg", "pkg.m.first", "pkg.m.second")
    ]


def test_of_equal_summaries_or_documents_the_first_by_name_is_kept(install):
    source = (
        function("d", text("d", body="Equal  body\n    " + BODY))
        + function("c", text("c", body="equal Body " + BODY))
        + function("b", text("a").replace("Say what", "SAY  what").replace("word0", "other"))
        + function("a")
        + function("e", f"Repeats its own summary.\n\n{BODY}\nrepeats  its OWN summary.")
        + function("f")
    )
    install("pkg", {"pkg/m.py": source})
    install("copy", {"copied/m.py": function("f") + function("g")})
    for packages in (["pkg", "copy"], ["copy", "pkg"]):
        pairs = collect(packages)
        kept = ["copied.m.f", "copied.m.g", "pkg.m.a", "pkg.m.c"]
        assert pairs["doc_id"].tolist() == kept
        assert pairs["package"].tolist() == ["copy", "copy", "pkg", "pkg"]


def test_the_frames_of_a_data_set(install):
    install("pkg", {"pkg/m.py": many(12)})
    pairs = collect(["pkg"]).set_index("doc_id")
    frames = build(entry(["pkg"]))
    assert {name: list(frame.columns) for name, frame in frames.items()} == {
        "corpus": ["doc_id", "title", "text"],
        "queries": ["query_id", "text"],
        "qrels": ["query_id", "doc_id", "relevance"],
        "train": ["query", "positive"],
    }
    assert {name: len(frame) for name, frame in frames.items()} == {
        "corpus": 6,
        "queries": 4,
        "qrels": 4,
        "train": 6,
    }
    corpus = frames["corpus"]
    assert corpus["doc_id"].is_monotonic_increasing
    assert set(corpus["title"]) == {""}
    assert corpus["text"].tolist() == pairs.loc[corpus["doc_id"], "document"].tolist()
    judged = frames["qrels"].merge(frames["queries"], on="query_id")
    assert set(judged["doc_id"]) < set(corpus["doc_id"])
    assert set(judged["relevance"]) == {1}
    assert judged["query_id"].tolist() == [f"q-{name}" for name in judged["doc_id"]]
    assert judged["text"].tolist() == pairs.loc[judged["doc_id"], "query"].tolist()
    # Training rows and test documents share no pair, and together they are all pairs.
    train = pairs.reset_index().merge(
        frames["train"], left_on=["query", "document"], right_on=["query", "positive"]
    )
    assert len(train) == 6
    assert set(train["doc_id"]) == set(pairs.index) - set(corpus["doc_id"])


def test_the_split_is_in_the_order_of_a_hash_of_seed_and_name(install):
    install("pkg", {"pkg/m.py": many(12)})
    names = [f"pkg.m.f{i:02}" for i in range(12)]
    splits = set()
    for seed in (0, 1):
        order = sorted(names, key=lambda n: hashlib.sha256(f"{seed}:{n}".encode()).hexdigest())
        frames = build(entry(["pkg"], seed=seed, train_pairs=3))
        assert frames["corpus"]["doc_id"].tolist() == sorted(order[:6])
        assert frames["qrels"]["doc_id"].tolist() == order[:4]
        assert [query.split()[2] for query in frames["train"]["query"]] == [
            name.rpartition(".")[2] for name in order[6:9]
        ]
        splits.add(tuple(order[:6]))
    assert len(splits) == 2


def same(one, other):
    return all(one[name].equals(other[name]) for name in one)


def test_order_of_files_and_packages_and_other_installs_change_nothing(install):
    files = {f"a/m{i}.py": many(6, f"a{i}") for i in range(3)}
    # One name, three texts: in a class of a module, in the module of that name, in another package.
    files["a.py"] = f'class x:\n  def f():\n    """{text("one")}"""\n'
    files["a/x.py"] = function("f", text("two"))
    install("a", files)
    install("b", {"b/m.py": many(6, "b"), "a/x/__init__.py": function("f", text("three"))})
    assert collect(["a", "b"]).set_index("doc_id").loc["a.x.f", "query"] == "Say what one does."
    before = build(entry(["a", "b"]))
    install("a", dict(reversed(files.items())))
    site = install("c", {"c/m.py": many(6, "c"), "a/plugin.py": many(6, "p")})
    (site / "b/unrecorded.py").write_text(many(6, "u"))
    assert same(before, build(entry(["b", "a"])))
    assert not same(before, build(entry(["a", "b", "c"])))


def test_out_of_domain_has_no_training_rows(install):
    install("pkg", {"pkg/m.py": many(12)})
    frames = build(entry(["pkg"], split="out-of-domain"))
    assert len(frames["train"]) == 0
    assert same(frames, build(entry(["pkg"], train_pairs=0)))


@pytest.mark.parametrize(("pairs", "train_pairs", "enough"), [(6, 0, 1), (6, 1, 0), (7, 1, 1)])
def test_too_few_pairs_are_refused(install, pairs, train_pairs, enough):
    install("pkg", {"pkg/m.py": many(pairs)})
    wanted = entry(["pkg"], train_pairs=train_pairs)
    if enough:
        assert len(build(wanted)["train"]) == train_pairs
        return
    with pytest.raises(UserError, match=r"give 6 pairs, but 7 are needed \(documents: 6, and at"):
        build(wanted)


def test_more_queries_than_documents_are_refused():
    with pytest.raises(UserError, match=r"queries is 7, but .* documents is 6"):
        build(entry(["not looked at"], queries=7))


def test_a_missing_distribution_is_named_with_the_lock(install):
    install("pkg", {"pkg/m.py": many(12)})
    install("bare", {}, record=False)
    for name in ("no-such-package", "bare"):
        message = rf"{name}' is not installed with a record.*envs/requirements\.txt"
        with pytest.raises(UserError, match=message):
            build(entry(["pkg", name]))
    assert (Path(__file__).parents[2] / "envs/requirements.txt").is_file()


def test_a_recorded_file_that_is_gone_is_named(install):
    site = install("pkg", {"pkg/m.py": many(12)})
    (site / "pkg/m.py").unlink()
    with pytest.raises(UserError, match=r"pkg/m\.py: cannot be read .*install its package again"):
        collect(["pkg"])


def test_the_embedded_data_sets_have_the_configured_sizes():
    assert not set(IN_DOMAIN) & set(OUT_OF_DOMAIN)
    path = Path(__file__).parents[2] / "config/datasets.yaml"
    entries = validate(Registry, {"datasets": read_yaml(path)}, str(path)).datasets
    seen = set()
    for name, tops in (("pydocs", {"torch", "sklearn"}), ("pydocs-ood", {"sympy", "json"})):
        wanted = entries[name]
        frames = build(wanted)
        trained = wanted.train_pairs if wanted.split == "in-domain" else 0
        assert {table: len(frame) for table, frame in frames.items()} == {
            "corpus": wanted.documents,
            "queries": wanted.queries,
            "qrels": wanted.queries,
            "train": trained,
        }
        found = {doc_id.partition(".")[0] for doc_id in frames["corpus"]["doc_id"]}
        assert tops <= found
        assert not found & seen
        seen |= found
        assert frames["corpus"]["doc_id"].is_unique
        assert frames["corpus"]["text"].is_unique
        assert not set(frames["corpus"]["text"]) & set(frames["train"]["positive"])
