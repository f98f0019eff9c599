"""The command line `splade-rescale`: a thin layer over the stage modules.

Stage modules are imported inside the commands, so that `--help` and light stages do not pay for
torch, and so that thread limits are in the environment before any library reads them.
"""

import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

from splade_rescale.errors import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Which pretrained encoder, at which MLM-head scale, makes the best learned sparse "
    "retriever? One command per stage; the Snakemake workflow calls the same commands.",
)
download = typer.Typer(no_args_is_help=True, help="Get a data set or a backbone.")
encode = typer.Typer(no_args_is_help=True, help="Turn texts into sparse vectors.")
index = typer.Typer(no_args_is_help=True, help="Build a Lucene index.")
search = typer.Typer(no_args_is_help=True, help="Retrieve with a Lucene index; write a TREC run.")
config = typer.Typer(no_args_is_help=True, help="Check a configuration; write its JSON schemas.")
for name, group in {
    "download": download,
    "encode": encode,
    "index": index,
    "search": search,
    "config": config,
}.items():
    app.add_typer(group, name=name)


def _limit_threads(threads: int | None) -> int | None:
    """Limit every thread pool of this process; spinning OpenMP threads slow their neighbours."""
    if threads is not None:
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ[variable] = str(threads)
        os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
        os.environ["RAYON_NUM_THREADS"] = str(threads)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    return threads


def _known_device(device: str | None) -> str | None:
    if device is not None and not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        raise UserError(f"--device: expected cpu, cuda or cuda:NUMBER, found {device!r}")
    return device


def _settings(model: type[Any], text: str | None) -> Any:
    """Read settings given as JSON text, or as a JSON file in which they stand.

    A file written beside a result, such as train.json, has them under the key `settings`.
    """
    from splade_rescale.config import validate

    if text is None:
        return validate(model, {}, "--settings")
    if not text.strip():
        raise UserError("--settings: empty; expected JSON text or the name of a JSON file")
    if text.lstrip().startswith("{"):
        try:
            return validate(model, json.loads(text), "--settings")
        except json.JSONDecodeError as error:
            raise UserError(f"--settings: not valid JSON ({error})") from None
    from splade_rescale.files import read_json_object

    data = read_json_object(text)
    return validate(model, data.get("settings", data), text)


def _bars() -> bool:
    """Progress bars are for people; a log file gets none, those of the libraries included."""
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return sys.stderr.isatty()


Threads = Annotated[
    int | None,
    typer.Option(min=1, callback=_limit_threads, help="CPU threads; all cores if unset."),
]
MemoryMb = Annotated[int | None, typer.Option(min=256, help="Most memory of the Java heap, MB.")]
SettingsText = Annotated[
    str | None,
    typer.Option(help="Settings as JSON text, or a JSON file (such as the one beside a result)."),
]
Device = Annotated[
    str | None,
    typer.Option(callback=_known_device, help="cpu or cuda; as the settings say if unset."),
]
ExistingFolder = Annotated[Path, typer.Argument(exists=True, file_okay=False)]
ExistingFile = Annotated[Path, typer.Argument(exists=True, dir_okay=False)]


def _registry_entry(kind: str, name: str, text: str | None) -> Any:
    from splade_rescale.config import Registry, read_yaml, validate

    if text is not None:
        try:
            entries, source = {name: json.loads(text)}, "--entry"
        except json.JSONDecodeError as error:
            raise UserError(f"--entry: not valid JSON ({error})") from None
    else:
        path = Path("config") / f"{kind}.yaml"
        entries, source = read_yaml(path), str(path)
    registry = getattr(validate(Registry, {kind: entries}, source), kind)
    if name not in registry:
        raise UserError(f"{source}: no entry {name!r}; known: {', '.join(sorted(registry))}")
    return registry[name]


Entry = Annotated[
    str | None,
    typer.Option(help="Registry entry as JSON; looked up in config/ of this folder if unset."),
]


@download.command("dataset")
def download_dataset_command(
    name: Annotated[str, typer.Argument(help="Slug of the data set.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    entry: Entry = None,
    corpus_from: Annotated[
        Path | None, typer.Option(help="Data set folder whose corpus this one shares.")
    ] = None,
) -> None:
    """Write corpus.parquet, queries.parquet, qrels.parquet and train.parquet of a data set."""
    from splade_rescale.download import download_dataset

    download_dataset(name, _registry_entry("datasets", name, entry), out, corpus_from)


@download.command("backbone")
def download_backbone_command(
    name: Annotated[str, typer.Argument(help="Slug of the backbone.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    entry: Entry = None,
    of: Annotated[Path | None, typer.Option(help="Folder of a twin's backbone.")] = None,
    train: Annotated[
        Path | None, typer.Option(help="Data set folder whose train.parquet is pretrained on.")
    ] = None,
    threads: Threads = None,
) -> None:
    """Write a backbone as a plain transformers checkpoint folder."""
    from splade_rescale.download import download_backbone

    download_backbone(
        name,
        _registry_entry("backbones", name, entry),
        out,
        of=of,
        train=train / "train.parquet" if train else None,
        progress=_bars(),
    )


@app.command()
def norms(
    model: Annotated[str, typer.Argument(help="Checkpoint folder, or a repository on the hub.")],
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    activation: Annotated[
        Path | None, typer.Option(help="CSV of initial activation statistics to write.")
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="Data set folder whose train.parquet is sampled for it.")
    ] = None,
    scales: Annotated[str, typer.Option(help="Scales k of it, separated by commas.")] = "1",
    query_length: Annotated[int, typer.Option(min=3, help="Tokens of a query.")] = 256,
    document_length: Annotated[int, typer.Option(min=3, help="Tokens of a document.")] = 256,
    settings: SettingsText = None,
    rescale: Annotated[str | None, typer.Option(help="Rescale settings as JSON.")] = None,
    revision: Annotated[str, typer.Option(help="Commit, tag or branch on the hub.")] = "main",
    threads: Threads = None,
) -> None:
    """Measure the row norms of a masked language model's output projection; print them."""
    from splade_rescale.hub import local_backbone
    from splade_rescale.norms import format_norms, measure
    from splade_rescale.settings import NormsSettings, RescaleSettings

    if (activation is None) != (dataset is None):
        raise UserError("--activation and --dataset go together: give both or neither")
    measured = measure(
        local_backbone(model, revision),
        _settings(NormsSettings, settings),
        out=out,
        activation=activation,
        train=dataset / "train.parquet" if dataset else None,
        scales=scales.split(","),
        rescale=_settings(RescaleSettings, rescale),
        query_length=query_length,
        document_length=document_length,
    )
    typer.echo(format_norms(model, measured))


@app.command("norms-table")
def norms_table(
    backbones: Annotated[list[str], typer.Argument(help="Slugs, in the order of the rows.")],
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
) -> None:
    """Write results/norms.csv and results/activation.csv from the files of each backbone."""
    from splade_rescale.norms_table import write_norms_tables

    write_norms_tables(backbones, results)


@app.command()
def rescale(
    model: ExistingFolder,
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    k: Annotated[
        str | None, typer.Option(help="Divisor of the head, or auto (needs --dataset).")
    ] = None,
    k_from: Annotated[
        Path | None, typer.Option(help="auto.json that choose-k wrote, instead of --k.")
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="Data set folder whose train.parquet k: auto is chosen on.")
    ] = None,
    tying: Annotated[
        str, typer.Option(help="shared: scale the tied matrix; untied: the output projection only.")
    ] = "shared",
    bias: Annotated[str, typer.Option(help="scale or keep the output bias.")] = "scale",
    threads: Threads = None,
) -> None:
    """Divide a checkpoint's MLM head by k, once; write a plain transformers checkpoint."""
    from splade_rescale.config import validate
    from splade_rescale.files import read_json_object
    from splade_rescale.rescale import rescale as run
    from splade_rescale.scale import AUTO, canonical_k
    from splade_rescale.settings import NormsSettings, RescaleSettings

    options = validate(RescaleSettings, {"tying": tying, "bias": bias}, "rescale")
    if (k is None) == (k_from is None):
        raise UserError("give either --k or --k-from")
    if k_from is not None:
        k = read_json_object(k_from).get("k")
        if k is None:
            raise UserError(f"{k_from}: has no k; expected the file that choose-k wrote")
    elif k == AUTO:
        from splade_rescale.choose_k import choose_k as choose

        if dataset is None:
            raise UserError("--k auto needs --dataset, a folder with train.parquet to choose on")
        k = choose(model, dataset / "train.parquet", NormsSettings(), options)["k"]
        typer.echo(f"k = {k}")
    run(model, out, float(canonical_k(k)), options)


@app.command("choose-k")
def choose_k(
    model: ExistingFolder,
    out: Annotated[Path, typer.Argument(help="JSON file to write.")],
    dataset: Annotated[Path, typer.Option(help="Data set folder whose train.parquet is sampled.")],
    query_length: Annotated[int, typer.Option(min=3, help="Tokens of a query.")] = 256,
    document_length: Annotated[int, typer.Option(min=3, help="Tokens of a document.")] = 256,
    settings: SettingsText = None,
    rescale: Annotated[str | None, typer.Option(help="Rescale settings as JSON.")] = None,
    threads: Threads = None,
) -> None:
    """Choose k for a backbone before training, where its initial contrastive loss is smallest."""
    from splade_rescale.choose_k import choose_k as run
    from splade_rescale.settings import NormsSettings, RescaleSettings

    choice = run(
        model,
        dataset / "train.parquet",
        _settings(NormsSettings, settings),
        _settings(RescaleSettings, rescale),
        out=out,
        query_length=query_length,
        document_length=document_length,
    )
    doubt = "" if choice["reliable"] else " (no clear minimum: do not rely on it)"
    typer.echo(
        f"k = {choice['k']}: initial loss {choice['first_loss']:.4f}, "
        f"chance {choice['chance']:.4f}{doubt}"
    )


@app.command()
def train(
    init: ExistingFolder,
    pairs: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="train.parquet")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    settings: SettingsText = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of order and dropout.")] = 42,
    checkpoints: Annotated[
        Path | None,
        typer.Option(help="What an interrupted run resumes from."),
    ] = None,
    threads: Threads = None,
) -> None:
    """Train SPLADE-max from a rescaled checkpoint. A collapsed run is a result, not an error."""
    from splade_rescale.settings import TrainSettings
    from splade_rescale.train import train as run

    run(
        init,
        pairs,
        out,
        checkpoints or out.with_name(f"{out.name}.checkpoints"),
        _settings(TrainSettings, settings),
        seed,
        progress=_bars(),
    )


@encode.command("corpus")
def encode_corpus_command(
    model: ExistingFolder,
    corpus: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="corpus.parquet")],
    out: Annotated[Path, typer.Argument(help="The .npz to write; ids and statistics lie beside.")],
    shard: Annotated[int, typer.Option(min=0, help="Number of the shard, from 0.")] = 0,
    shards: Annotated[int, typer.Option(min=1, help="Shards of the corpus.")] = 1,
    settings: SettingsText = None,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Encode one shard of a corpus."""
    from splade_rescale.encode import encode_corpus
    from splade_rescale.settings import EncodeSettings

    encode_corpus(
        model,
        corpus,
        out,
        _settings(EncodeSettings, settings),
        shard=shard,
        shards=shards,
        device=device,
        progress=_bars(),
    )


@encode.command("queries")
def encode_queries_command(
    model: ExistingFolder,
    queries: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="queries.parquet")],
    out: Annotated[Path, typer.Argument(help="The .npz to write; ids and statistics lie beside.")],
    settings: SettingsText = None,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Encode all queries of a data set."""
    from splade_rescale.encode import encode_queries
    from splade_rescale.settings import EncodeSettings

    encode_queries(
        model, queries, out, _settings(EncodeSettings, settings), device=device, progress=_bars()
    )


@index.command("impact")
def index_impact(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    vectors: Annotated[
        list[Path], typer.Argument(exists=True, dir_okay=False, help=".npz shards in corpus order")
    ],
    settings: SettingsText = None,
    threads: Threads = None,
    memory_mb: MemoryMb = None,
) -> None:
    """Build an impact index from the vectors of a corpus."""
    from splade_rescale.index import build_impact_index
    from splade_rescale.settings import IndexSettings

    build_impact_index(
        vectors,
        out,
        _settings(IndexSettings, settings),
        threads=threads or os.cpu_count() or 1,
        memory_mb=memory_mb,
        progress=_bars(),
    )


@index.command("bm25")
def index_bm25(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    corpus: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="corpus.parquet")],
    threads: Threads = None,
    memory_mb: MemoryMb = None,
) -> None:
    """Build a BM25 index from the text of a corpus."""
    from splade_rescale.index import build_bm25_index

    build_bm25_index(
        corpus,
        out,
        threads=threads or os.cpu_count() or 1,
        memory_mb=memory_mb,
        progress=_bars(),
    )


SelfHits = Annotated[
    bool, typer.Option("--remove-self-hits", help="Drop hits whose doc_id is the query_id.")
]
StatsFile = Annotated[Path | None, typer.Option(help="JSON file of statistics to write.")]


@search.command("impact")
def search_impact_command(
    index_folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, metavar="INDEX")],
    queries: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="queries.npz")],
    run: Annotated[Path, typer.Argument(help="run.trec.gz to write.")],
    settings: SettingsText = None,
    stats: StatsFile = None,
    remove_self_hits: SelfHits = False,
    threads: Threads = None,
    memory_mb: MemoryMb = None,
) -> None:
    """Search an impact index with encoded queries."""
    from splade_rescale.files import write_json
    from splade_rescale.search import search_impact
    from splade_rescale.settings import SearchSettings

    found = search_impact(
        index_folder,
        queries,
        run,
        _settings(SearchSettings, settings),
        remove_self_hits=remove_self_hits,
        threads=threads or os.cpu_count() or 1,
        memory_mb=memory_mb,
        progress=_bars(),
    )
    if stats:
        write_json(stats, found)


@search.command("bm25")
def search_bm25_command(
    index_folder: Annotated[Path, typer.Argument(exists=True, file_okay=False, metavar="INDEX")],
    queries: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="queries.parquet")],
    run: Annotated[Path, typer.Argument(help="run.trec.gz to write.")],
    settings: SettingsText = None,
    bm25: Annotated[str | None, typer.Option(help="k1 and b as JSON.")] = None,
    stats: StatsFile = None,
    remove_self_hits: SelfHits = False,
    threads: Threads = None,
    memory_mb: MemoryMb = None,
) -> None:
    """Search a BM25 index with query text."""
    from splade_rescale.files import write_json
    from splade_rescale.search import search_bm25
    from splade_rescale.settings import Bm25Settings, SearchSettings

    found = search_bm25(
        index_folder,
        queries,
        run,
        _settings(SearchSettings, settings),
        _settings(Bm25Settings, bm25),
        remove_self_hits=remove_self_hits,
        threads=threads or os.cpu_count() or 1,
        memory_mb=memory_mb,
        progress=_bars(),
    )
    if stats:
        write_json(stats, found)


@app.command()
def evaluate(
    run: ExistingFile,
    qrels: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="qrels.parquet")],
    metrics: Annotated[Path, typer.Argument(help="metrics.json to write.")],
    per_query: Annotated[Path, typer.Argument(help="per_query.parquet to write.")],
    measures: Annotated[
        str, typer.Option(help="Measures as ir_measures prints them, separated by blanks.")
    ] = "nDCG@10 RR@10 R@100",
) -> None:
    """Score a run over all judged queries; a query without hits counts as 0."""
    from splade_rescale.evaluate import write_metrics

    found = write_metrics(run, qrels, measures.split(), metrics, per_query)
    typer.echo(json.dumps(found["measures"]))


@app.command()
def sparsity(
    out: Annotated[Path, typer.Argument(help="JSON file to write.")],
    corpus: Annotated[list[Path], typer.Argument(exists=True, help=".npz shards of the corpus")],
    queries: Annotated[Path, typer.Option(exists=True, help="queries.npz")],
    quantization: Annotated[int, typer.Option(min=1, help="Quantisation of the index.")] = 100,
) -> None:
    """Count active terms and FLOPS of queries and documents."""
    from splade_rescale.files import write_json
    from splade_rescale.sparsity import sparsity as run

    write_json(out, run(queries, corpus, quantization))


def _grid(config_file: Path | None, grid: str | None, registries: Path) -> Any:
    from splade_rescale.config import Grid, read_experiment, validate

    if (config_file is None) == (grid is None):
        raise UserError("give either CONFIG or --grid")
    if config_file is not None:
        return read_experiment(config_file, registries).grid()
    try:
        return validate(Grid, json.loads(grid or ""), "--grid")
    except json.JSONDecodeError as error:
        raise UserError(f"--grid: not valid JSON ({error})") from None


@app.command()
def table(
    config_file: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Configuration whose cells are read.")
    ] = None,
    grid: Annotated[str | None, typer.Option(help="The cells as JSON, instead of CONFIG.")] = None,
    registries: Annotated[Path, typer.Option(help="Folder of the registries.")] = Path("config"),
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
    published: Annotated[Path | None, typer.Option(help="CSV file of published values.")] = None,
) -> None:
    """Put every cell of a grid into one table; print it."""
    from splade_rescale.cells import cells_of
    from splade_rescale.table import build_table, format_table, write_table

    chosen = _grid(config_file, grid, registries)
    frame = build_table(
        cells_of(chosen, results), baseline=chosen.baseline_backbone, published=published
    )
    if out is not None:
        write_table(frame, out)
    typer.echo(format_table(frame))


@app.command()
def paper(
    config_file: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Configuration whose cells are read.")
    ] = None,
    grid: Annotated[str | None, typer.Option(help="The cells as JSON, instead of CONFIG.")] = None,
    registries: Annotated[Path, typer.Option(help="Folder of the registries.")] = Path("config"),
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    published: Annotated[Path, typer.Option(help="CSV file of published values.")] = Path(
        "config/published.csv"
    ),
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results/paper"),
    settings: SettingsText = None,
) -> None:
    """Write the paper's tables and figures from results/table.csv and the training logs."""
    from splade_rescale.cells import cells_of
    from splade_rescale.paper_files import write_paper
    from splade_rescale.settings import PaperSettings

    chosen = _grid(config_file, grid, registries)
    write_paper(
        cells_of(chosen, results),
        results,
        published,
        out,
        _settings(PaperSettings, settings),
    )


@config.command("check")
def config_check(
    config_file: Annotated[Path, typer.Argument(metavar="CONFIG")],
    registries: Annotated[Path, typer.Option(help="Folder of the registries.")] = Path("config"),
) -> None:
    """Validate a configuration and say how large its grid is."""
    from splade_rescale.config import read_experiment

    experiment = read_experiment(config_file, registries)
    grid = experiment.grid()
    trainings = sum(
        len(arm.backbones) * len(arm.scales) * len(arm.seeds) for arm in grid.arms.values()
    )
    typer.echo(f"{config_file}: {trainings} trainings, {trainings * len(grid.measures)} cells")


@config.command("schema")
def config_schema(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("config/schema"),
) -> None:
    """Write the JSON schemas that editors check the configuration with."""
    from splade_rescale.config import json_schemas
    from splade_rescale.files import write_json

    for file, schema in json_schemas().items():
        write_json(out / file, schema)


def main() -> None:
    """Run the command line; a user's mistake is printed as one message and exits with 1."""
    _limit_threads(None)
    _bars()
    try:
        app()
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
    except OSError as error:
        # Of a named file: no permission, no space, a file where a folder is expected, ...
        if error.filename is None:
            traceback.print_exc()
            sys.exit(2)
        # Of two names, the second is what the file is renamed to.
        name = os.fsdecode(error.filename2 or error.filename)
        typer.echo(f"error: {name}: {error.strerror}", err=True)
        sys.exit(1)
    except Exception:
        traceback.print_exc()
        sys.exit(2)
