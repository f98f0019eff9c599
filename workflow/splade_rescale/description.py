"""The words of the report: what was asked, and what its columns mean."""

from collections.abc import Sequence

#: Measures by the name up to `@`, as ir_measures prints them.
_MEASURES = {
    "nDCG": "quality of the first {cutoff} hits, better ones higher up counting more "
    "(normalised discounted cumulative gain); 1 is a perfect ranking",
    "RR": "1 / rank of the first relevant document among the first {cutoff} hits, 0 if there is "
    "none (reciprocal rank)",
    "R": "part of the relevant documents that stand among the first {cutoff} hits (recall)",
    "AP": "mean precision at the ranks of the relevant documents among the first {cutoff} hits",
    "P": "part of the first {cutoff} hits that are relevant (precision)",
}

#: Column of the results table -> what it is.
COLUMNS = {
    "arm": "a named variation of the experiment; the main one has no name",
    "dataset": "the queries and documents that were searched",
    "backbone": "the pretrained masked language model that training started from; bm25 is ordinary "
    "word matching, without any training",
    "k": "what the head was divided by before training; “auto” was chosen from the untrained "
    "model, and the number it chose stands in brackets",
    "seed": "seed of the training's random numbers",
    "status": "ok; collapsed-zero: queries or documents have no term left, so nothing is found; "
    "collapsed-dense: documents end with more than half of all terms, so they are not sparse; "
    "diverged: a loss or gradient became infinite, and training stopped there",
    "delta_vs_k1": "difference in the first measure of the data set to the same backbone at k = 1",
    "p_holm_vs_k1": "probability of so large a difference to k = 1 by chance: paired t-test over "
    "queries, corrected by Holm over all comparisons on the data set. Below 0.05 is usually called "
    "significant",
    "active_terms_q": "terms of a query with a weight above 0, on average",
    "active_terms_d": "the same of a document",
    "FLOPS": "expected number of multiplications to score one document for one query: how much "
    "work a search is. Smaller is cheaper",
    "norm_after": "mean L2 norm of the head's rows after division by k, before training",
    "last_loss": "training loss at the end",
    "exact_recall@10": "part of the ten best documents by exact arithmetic that the search engine "
    "found among its first ten",
}


def measure(name: str) -> str:
    """What a measure tells, in words; empty for one that has none here.

    Args:
        name: as ir_measures prints it: nDCG@10, R(rel=2)@1000.
    """
    base, _, cutoff = name.partition("@")
    text = _MEASURES.get(base.partition("(")[0], "")
    if not text:
        return ""
    words = text.format(cutoff=cutoff) if cutoff else text.replace("first {cutoff} ", "")
    return words + ("; only documents of a grade of at least 2 count" if "(rel=2)" in base else "")


def meanings(columns: Sequence[str]) -> list[tuple[str, str]]:
    """(column, what it is) of those that have words here, in the order given."""
    found = [(name, COLUMNS.get(name) or measure(name)) for name in columns]
    return [(name, words) for name, words in found if words]


def counted(number: int, noun: str, plural: str = "") -> str:
    """`1 seed`, `2 seeds`, `12,000 queries`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def steps(settings: dict[str, object]) -> str:
    """How long training took, from the train settings: steps or epochs."""
    if settings.get("max_steps"):
        return counted(int(str(settings["max_steps"])), "step")
    epochs = float(str(settings["epochs"]))
    return "1 epoch" if epochs == 1 else f"{epochs:g} epochs"
