"""`make bench-engines`: index and search a synthetic corpus by every engine, at growing sizes.

Each index and each search is a process of its own, so that peak memory is its own. What is printed
are ratios and counts; the CSV has the seconds of this machine as well.

    PYTHONPATH=tests:workflow python -m bench.engines --sizes 10000,100000 --threads 1,2
"""

import argparse
import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.tables import markdown
from splade_rescale.files import atomic_file, write_json

ENGINES = ("lucene", "exact", "bmp", "seismic")
#: So that a million documents take less than 8 GiB; smaller corpora do not reach n_postings.
OPTIONS = '{"bmp": {"block_size": 128}, "seismic": {"n_postings": 2000}}'
QUANTIZATION = 100
COMPARED = 100  # queries
COLUMNS = (
    "engine",
    "documents",
    "postings",
    "bytes_per_posting",
    "build_memory_mb",
    "search_memory_mb",
    "exact_recall@10",
    "threads",
    "build_seconds",
    "build_cpu_seconds",
    "queries_per_second",
    "build_vs_lucene",  # processor time, same corpus; below 1 is faster
    "build_growth",  # processor time, over that of the smallest corpus
    "speed_vs_lucene",  # queries per second, same corpus and threads
    "speed_vs_smallest",  # queries per second, over that of the smallest corpus
    "speedup",  # queries per second, over that of the fewest threads
)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def build(job: dict[str, Any]) -> dict[str, Any]:
    """Build one index; runs in a process of its own."""
    from splade_rescale.index import build_impact_index
    from splade_rescale.settings import IndexSettings

    before = time.process_time()
    built = build_impact_index(
        [Path(shard) for shard in job["corpus"]],
        Path(job["index"]),
        IndexSettings(engine=job["engine"], **job["options"]),
        threads=1,
        memory_mb=job["heap_mb"],
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "postings": built["postings"],
        "bytes": built["bytes"],
        "seconds": built["seconds"],
        "cpu_seconds": used.ru_utime + used.ru_stime - before,
        "memory_mb": _peak_mb(),
    }


def search(job: dict[str, Any]) -> dict[str, Any]:
    """Search one index by each number of threads; runs in a process of its own.

    The time is that of all queries, less that of opening the index.
    """
    from splade_rescale.engines import engine
    from splade_rescale.settings import SearchSettings
    from splade_rescale.vectors import quantise, read_vectors

    vectors, _ = read_vectors(Path(job["queries"]))
    queries = quantise(vectors, QUANTIZATION, job["queries"])
    settings = SearchSettings(hits=job["hits"])
    chosen = engine(job["engine"])

    def timed(part: Any) -> float:
        began = time.perf_counter()
        for _ in chosen.search(
            Path(job["index"]),
            part,
            settings,
            most=job["hits"],
            threads=job["threads"],
            memory_mb=job["heap_mb"],
        ):
            pass
        return time.perf_counter() - began

    timed(queries[:20])  # starts Java, and brings the files into memory
    opening = timed(queries[:1])
    seconds = timed(queries) - opening
    return {"queries_per_second": (queries.shape[0] - 1) / seconds, "memory_mb": _peak_mb()}


def compare(job: dict[str, Any]) -> dict[str, Any]:
    """Agreement of one index with exact search, on 100 queries; runs in a process of its own."""
    from splade_rescale.agreement import exact_recall
    from splade_rescale.engines import engine
    from splade_rescale.settings import SearchSettings
    from splade_rescale.vectors import quantise, read_vectors

    vectors, ids = read_vectors(Path(job["queries"]))
    queries = quantise(vectors, QUANTIZATION, job["queries"])[:COMPARED]
    found = engine(job["engine"]).search(
        Path(job["index"]),
        queries,
        SearchSettings(),
        most=job["hits"],
        threads=1,
        memory_mb=job["heap_mb"],
    )
    first = [[doc_id for doc_id, _ in hits[:10]] for hits, _ in found]
    shards = [Path(shard) for shard in job["corpus"]]
    recall, _ = exact_recall(
        first, queries, ids[:COMPARED], shards, QUANTIZATION, remove_self_hits=False
    )
    return {"recall": recall}


def make(job: dict[str, Any]) -> dict[str, Any]:
    """Write the corpus and the queries; runs in a process of its own."""
    from bench import synthetic

    folder = Path(job["folder"])
    corpus = synthetic.write_corpus(folder, job["documents"])
    queries = synthetic.write_queries(folder, job["queries"])
    return {"corpus": [*map(str, corpus)], "queries": str(queries)} | synthetic.statistics(
        queries, corpus[0]
    )


def in_process(work: str, job: dict[str, Any], kept: Path) -> dict[str, Any]:
    """Run one of the functions above in a new process and return what it returns.

    The result is kept in a file, so that a benchmark which was interrupted goes on from there.
    """
    if kept.exists():
        return json.loads(kept.read_text())
    command = [sys.executable, "-m", "bench.engines", "--work", work]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        input=json.dumps(job),
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{work} {job.get('engine', '')}: ended with {done.returncode}")
    # engines write to the standard output too
    result = json.loads(done.stdout.splitlines()[-1])
    write_json(kept, result)
    return result


def relate(rows: list[dict[str, Any]]) -> None:
    """Add the ratios to the measured rows."""

    def find(**keys: Any) -> dict[str, Any] | None:
        return next((r for r in rows if all(r[k] == v for k, v in keys.items())), None)

    smallest = min(row["documents"] for row in rows)
    fewest = min(row["threads"] for row in rows)
    for row in rows:
        here = {key: row[key] for key in ("engine", "documents", "threads")}
        for column, measure, other in (
            ("build_vs_lucene", "build_cpu_seconds", {**here, "engine": "lucene"}),
            ("build_growth", "build_cpu_seconds", {**here, "documents": smallest}),
            ("speed_vs_lucene", "queries_per_second", {**here, "engine": "lucene"}),
            ("speed_vs_smallest", "queries_per_second", {**here, "documents": smallest}),
            ("speedup", "queries_per_second", {**here, "threads": fewest}),
        ):
            base = find(**other)
            row[column] = row[measure] / base[measure] if base else None


def show(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, without seconds and what depends on them alone."""
    left_out = ("build_seconds", "build_cpu_seconds", "queries_per_second", "postings")
    columns = [column for column in COLUMNS if column not in left_out]
    return markdown([{column: row[column] for column in columns} for row in rows])


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write all columns."""
    with atomic_file(path) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            short = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
            writer.writerow({column: short[column] for column in COLUMNS})


def main() -> None:
    """Make the corpora, run every engine on each, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("results/bench/engines.csv"))
    parser.add_argument("--folder", type=Path, help="keeps corpora, indexes and what was measured")
    parser.add_argument("--sizes", default="10000,100000,1000000")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--threads", default="1,2", help="of searches; none only builds")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--hits", type=int, default=1000)
    parser.add_argument("--heap-mb", type=int, default=2000, help="largest Java heap")
    parser.add_argument("--index", default=OPTIONS, help="options of index, as JSON")
    parser.add_argument("--work", choices=[f.__name__ for f in (build, search, compare, make)])
    arguments = parser.parse_args()
    if arguments.work:
        result = globals()[arguments.work](json.load(sys.stdin))
        print("\n" + json.dumps(result))
        return
    with tempfile.TemporaryDirectory() as temporary:
        _measure(arguments, arguments.folder or Path(temporary))


def _measure(arguments: argparse.Namespace, folder: Path) -> None:
    rows: list[dict[str, Any]] = []
    threads = [int(number) for number in arguments.threads.split(",") if number]
    for size in map(int, arguments.sizes.split(",")):
        place = folder.resolve() / str(size)
        made = in_process(
            "make",
            {"folder": str(place), "documents": size, "queries": arguments.queries},
            place / "made.json",
        )
        statistics = {k: v for k, v in made.items() if k not in ("corpus", "queries")}
        print(f"{size} documents: {json.dumps(statistics)}", file=sys.stderr)
        for engine in arguments.engines.split(","):
            job = {
                "engine": engine,
                "index": str(place / engine),
                "corpus": made["corpus"],
                "queries": made["queries"],
                "hits": arguments.hits,
                "heap_mb": arguments.heap_mb,
                "options": json.loads(arguments.index),
            }
            built = in_process("build", job, place / f"{engine}-build.json")
            agreed = in_process("compare", job, place / f"{engine}-compare.json")
            for number in threads:
                kept = place / f"{engine}-search-{number}.json"
                found = in_process("search", {**job, "threads": number}, kept)
                rows.append(
                    {
                        "engine": engine,
                        "documents": size,
                        "postings": built["postings"],
                        "bytes_per_posting": built["bytes"] / built["postings"],
                        "build_memory_mb": round(built["memory_mb"]),
                        "search_memory_mb": round(found["memory_mb"]),
                        "exact_recall@10": agreed["recall"],
                        "threads": number,
                        "build_seconds": built["seconds"],
                        "build_cpu_seconds": built["cpu_seconds"],
                        "queries_per_second": found["queries_per_second"],
                    }
                )
                relate(rows)
                write_csv(arguments.out, rows)
    print(show(rows))


if __name__ == "__main__":
    main()
