"""What models make of a few texts: the terms of most weight, before training and after it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from splade_rescale.batches import encode_texts
from splade_rescale.best import best_scales
from splade_rescale.cells import CellFiles
from splade_rescale.errors import UserError
from splade_rescale.files import write_json
from splade_rescale.head import load_tokenizer
from splade_rescale.parquet_files import ERRORS, read_table
from splade_rescale.report_figures import in_order
from splade_rescale.settings import EncodeSettings, ReportSettings
from splade_rescale.splade import Splade
from splade_rescale.table import read_table as read_results
from splade_rescale.text import document_text
from splade_rescale.tokens import readable_terms
from splade_rescale.vectors import string_rows

_BATCH_ROWS = 8192


def write_expansions(
    cells: list[CellFiles],
    results: Path,
    dataset: Path,
    out: Path,
    settings: ReportSettings,
    encode: EncodeSettings,
) -> None:
    """Write as JSON how each backbone expands a few texts at k = 1 and at its best k.

    The main arm and its first seed are looked at. Where k = 1 was not run, the smallest k stands
    in for it. The best k is that of the first data set.

    Args:
        cells: the rows of the experiment.
        results: folder with table.csv.
        dataset: folder of the first data set, from which the texts are taken.
        out: JSON file to write, see `expand`.
        settings: how many texts and terms.
        encode: lengths and batching.

    Raises:
        UserError: names a file that is missing or damaged.
    """
    headline = {cell.dataset: cell.measures[0] for cell in cells}
    first = next(iter(headline))
    best = best_scales(in_order(read_results(results / "table.csv"), headline), headline)
    best = best[(best["arm"] == "") & (best["dataset"] == first)].set_index("backbone")
    models = [c for c in cells if c.k is not None and c.arm == "" and c.dataset == first]
    texts = few_texts(dataset, settings.queries)
    backbones = []
    for backbone in dict.fromkeys(cell.backbone for cell in models):
        by_k = {c.k: c for c in reversed(models) if c.backbone == backbone}
        best_k = best.loc[backbone, "best_k"]
        chosen = scales_shown([k for k in by_k if k is not None], best_k)
        backbones.append(
            {
                "backbone": backbone,
                "scales": [
                    {
                        "k": k,
                        "best": k == best_k,
                        "before": expand(by_k[k].init_folder, texts, settings, encode),
                        "after": expand(by_k[k].model_folder, texts, settings, encode),
                    }
                    for k in chosen
                ],
            }
        )
    write_json(out, {"dataset": first, "texts": texts, "backbones": backbones})


def scales_shown(scales: Sequence[str], best: str) -> list[str]:
    """k = 1, or the smallest k of those given, and the best one where it is another.

    Args:
        scales: canonical scales; auto only counts where there is nothing else.
        best: one of them, or empty.
    """
    numbers = [k for k in scales if k[0].isdigit()]
    low = "1" if "1" in numbers else min(numbers, key=float, default=scales[0])
    return list(dict.fromkeys([low, best] if best else [low]))


def few_texts(dataset: Path, number: int) -> list[dict[str, str]]:
    """Queries evenly spread over the judged ones, each followed by its most relevant document.

    Args:
        dataset: folder with queries.parquet, qrels.parquet and corpus.parquet.
        number: of queries; all if there are fewer.

    Returns:
        kind (query or document), id and text of each.

    Raises:
        UserError: a file is missing or damaged, or no judged document is in the corpus.
    """
    queries = _read(dataset / "queries.parquet", ["query_id", "text"]).set_index("query_id")["text"]
    qrels = _read(dataset / "qrels.parquet", ["query_id", "doc_id", "relevance"])
    relevant = qrels[(qrels["relevance"] > 0) & qrels["query_id"].isin(queries.index)]
    # Of equal relevance the first id, so that the choice does not hang on the order of the file.
    relevant = relevant.sort_values(["relevance", "doc_id"], ascending=[False, True])
    answer = relevant.drop_duplicates("query_id").set_index("query_id")["doc_id"]
    judged = sorted(answer.index)
    if not judged:
        raise UserError(f"{dataset / 'qrels.parquet'}: holds no relevant document of any query")
    spread = np.linspace(0, len(judged) - 1, min(number, len(judged))).round().astype(int)
    chosen = [judged[place] for place in spread]
    # Not read as a whole: there are corpora of millions of documents.
    rows = string_rows(dataset / "corpus.parquet", ["doc_id", "title", "text"], _BATCH_ROWS)
    wanted = set(answer[chosen])
    documents = {row[0]: document_text(row[1], row[2]) for row in rows if row[0] in wanted}
    texts = []
    for query_id in chosen:
        texts.append({"kind": "query", "id": query_id, "text": queries[query_id]})
        doc_id = answer[query_id]
        if doc_id in documents:
            texts.append({"kind": "document", "id": doc_id, "text": documents[doc_id]})
    return texts


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    try:
        return read_table(path, columns).to_pandas()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except ERRORS as error:
        raise UserError(f"{path}: expected parquet with {', '.join(columns)} ({error})") from None


def expand(
    folder: Path, texts: list[dict[str, str]], settings: ReportSettings, encode: EncodeSettings
) -> list[dict[str, Any]]:
    """The terms of most weight that the model in `folder` gives each text.

    Args:
        folder: a checkpoint, trained or not.
        texts: of `few_texts`.
        settings: how many terms.
        encode: lengths and batching; the CPU does the work.

    Returns:
        active (number of terms above 0) and terms of each text; a term is [readable token,
        weight, whether the text itself has it], the heaviest first, equal weights by id.
    """
    tokenizer = load_tokenizer(folder)
    model = Splade.load(folder)
    names = readable_terms(tokenizer, range(model.vocabulary))
    expansions: list[dict[str, Any]] = [{} for _ in texts]
    for kind, length in (
        ("query", encode.query_length),
        ("document", encode.document_length),
    ):
        places = [place for place, text in enumerate(texts) if text["kind"] == kind]
        chosen = [texts[place]["text"] for place in places]
        vectors, *_ = encode_texts(model, tokenizer, chosen, encode, length)
        tokens = tokenizer(chosen, truncation=True, max_length=length)["input_ids"]
        for row, place in enumerate(places):
            expansions[place] = heaviest(vectors[[row]], set(tokens[row]), names, settings.terms)
    return expansions


def heaviest(
    vector: sparse.csr_array, own: set[int], names: Sequence[str], number: int
) -> dict[str, Any]:
    """The `number` terms of most weight of one vector [1, vocab], as in `expand`.

    Args:
        vector: weights.
        own: ids of the tokens that the text itself has.
        names: readable token by id.
        number: most terms.
    """
    order = np.lexsort((vector.indices, -vector.data))[:number]
    return {
        "active": int(vector.nnz),
        "terms": [
            [names[term], round(float(weight), 3), int(term) in own]
            for term, weight in zip(vector.indices[order], vector.data[order], strict=True)
        ],
    }
