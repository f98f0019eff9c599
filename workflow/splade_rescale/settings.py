"""The typed settings of every stage and of the registries.

Every field carries its default, its bounds and a description; the JSON schema for editors and
the errors of a bad configuration both come from here. Settings are frozen: a stage gets what
it was given.
"""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from splade_rescale.loss_table import LOSSES

SLUG_PATTERN = r"^[a-z0-9][a-z0-9.-]*$"
Slug = Annotated[str, Field(pattern=SLUG_PATTERN)]


class Settings(BaseModel):
    """Base of all settings: unknown keys are refused, values are frozen and finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _booleans_are_no_numbers(cls, data: Any) -> Any:
        """Refuse yes and no (True and False), which Python takes for 1 and 0, as numbers."""
        if isinstance(data, dict):
            for name, value in data.items():
                field = cls.model_fields.get(name)
                if isinstance(value, bool) and field and field.annotation is not bool:
                    raise PydanticCustomError(
                        "boolean",
                        "expected no boolean (yes, no)",
                        {"name": name},
                    )
        return data


class NormsSettings(Settings):
    """Head norms and initial activation statistics."""

    texts: int = Field(256, ge=2, description="training pairs sampled for activation statistics")
    batch_size: int = Field(
        32, ge=2, description="in-batch size of the initial contrastive loss and scores"
    )
    seed: int = Field(0, ge=0, description="seed of the sample")


class RescaleSettings(Settings):
    """How the MLM head is divided by k."""

    tying: Literal["shared", "untied"] = Field(
        "shared",
        description="shared: scale the tied matrix, input embeddings included (the paper); "
        "untied: scale the output projection only",
    )
    bias: Literal["scale", "keep"] = Field(
        "scale", description="whether the output bias is divided by k too (the paper does not say)"
    )


class TrainSettings(Settings):
    """SPLADE training; the defaults are the paper's where it states them."""

    dataset: Slug = Field(description="data set whose train.parquet is trained on")
    loss: Literal[tuple(LOSSES)] = Field(
        "contrastive",
        description="; ".join(f"{name}: {loss.about}" for name, loss in LOSSES.items()),
    )
    temperature: float = Field(1.0, gt=0, description="scores are divided by it before the softmax")
    lambda_q: float = Field(5e-2, ge=0, description="weight of FLOPS over queries after the ramp")
    lambda_d: float = Field(3e-3, ge=0, description="weight of FLOPS over documents after the ramp")
    ramp: float = Field(
        1 / 3, ge=0, le=1, description="part of the steps over which both lambdas rise as t squared"
    )
    learning_rate: float = Field(1e-4, gt=0, description="peak learning rate of AdamW")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay")
    warmup: float = Field(0.1, ge=0, le=1, description="part of the steps with rising rate")
    epochs: float = Field(1.0, gt=0, description="passes over train.parquet")
    max_steps: int | None = Field(None, ge=1, description="optimizer steps; overrides epochs")
    max_examples: int | None = Field(None, ge=1, description="use only the first rows")
    batch_size: int = Field(64, ge=1, description="examples per device and step")
    accumulation: int = Field(1, ge=1, description="steps whose gradients are added up")
    query_length: int = Field(256, ge=3, description="tokens of a query, specials included")
    document_length: int = Field(256, ge=3, description="tokens of a document, specials included")
    max_grad_norm: float = Field(1.0, gt=0, description="gradient norm is clipped to it")
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16 runs under autocast")
    negatives: Literal["device", "gathered"] = Field(
        "device", description="in-batch negatives of the own device or of all devices"
    )
    flops: Literal["device", "gathered"] = Field(
        "device", description="FLOPS over the own device's batch or over all devices' batches"
    )
    gpus: int = Field(0, ge=0, description="GPUs a training job asks for; 0 trains on the CPU")
    log_steps: int = Field(10, ge=1, description="steps between lines of train_log.csv")
    save_steps: int = Field(500, ge=1, description="steps between checkpoints to resume from")
    collapse_patience: int = Field(
        50, ge=1, description="consecutive all-zero steps after which training stops"
    )
    dense_fraction: float = Field(
        0.5,
        gt=0,
        le=1,
        description="collapsed-dense: documents end with more than this part of the terms active",
    )


class EncodeSettings(Settings):
    """Encoding of corpus and queries."""

    query_length: int = Field(256, ge=3, description="tokens of a query, specials included")
    document_length: int = Field(256, ge=3, description="tokens of a document, specials included")
    token_budget: int = Field(16_384, ge=1, description="most tokens, padding included, in a batch")
    max_terms: int = Field(
        4096, ge=1, description="most terms kept per text, by weight; cut texts are counted"
    )
    shards: int = Field(
        1,
        ge=1,
        description="corpus shards, each a job of its own; if unset, as the data set's entry says",
    )
    precision: Literal["fp32", "bf16"] = Field("fp32", description="bf16 runs under autocast")
    gpus: int = Field(0, ge=0, le=1, description="GPUs an encoding job asks for; 0 uses the CPU")


class BmpIndexSettings(Settings):
    """Options of the engine bmp, as its package names them."""

    block_size: int = Field(32, ge=1, le=256, description="documents in a block (bsize)")
    compress: bool = Field(
        False, description="compress the largest weights of the blocks (compress_range)"
    )


class SeismicIndexSettings(Settings):
    """Options of the engine seismic, as its package names them."""

    n_postings: int = Field(3500, ge=1, description="postings kept per term, on average")
    centroid_fraction: float = Field(0.1, gt=0, le=1, description="clusters per posting of a list")
    min_cluster_size: int = Field(2, ge=1, description="fewest documents in a cluster")
    summary_energy: float = Field(0.4, gt=0, le=1, description="weight kept in a summary")
    max_fraction: float = Field(1.5, ge=1, description="longest list, in multiples of n_postings")
    doc_cut: int = Field(15, ge=1, description="terms of a document that clustering looks at")
    batched_indexing: int | None = Field(
        None, ge=1, description="lists clustered at a time, to save memory; all if unset"
    )


class IndexSettings(Settings):
    """Impact index."""

    engine: Literal["lucene", "seismic", "bmp", "exact"] = Field(
        "lucene",
        description="lucene: inverted index, exact scores (the paper's kind); exact: sparse matrix "
        "product; bmp: block-max pruning with coarse weights; seismic: approximate search",
    )
    quantization: int = Field(
        100, ge=1, le=10_000, description="weights are stored as round(quantization x weight)"
    )
    bmp: BmpIndexSettings = BmpIndexSettings()
    seismic: SeismicIndexSettings = SeismicIndexSettings()


class BmpSearchSettings(Settings):
    """Options of the engine bmp, as its package names them."""

    alpha: float = Field(
        1.0,
        gt=0,
        le=1,
        description="stop at blocks that promise less than 1 / alpha of the last hit",
    )
    beta: float = Field(1.0, gt=0, le=1, description="part of the query's terms used, by weight")


class SeismicSearchSettings(Settings):
    """Options of the engine seismic, as its package names them."""

    query_cut: int = Field(10, ge=1, description="terms of a query whose lists are searched")
    heap_factor: float = Field(
        0.8, gt=0, le=1, description="skip clusters that promise less than the last hit / this"
    )


class SearchSettings(Settings):
    """Retrieval."""

    hits: int = Field(1000, ge=1, description="documents kept per query")
    exact_queries: int = Field(
        100,
        ge=0,
        description="queries, evenly spread over the data set, whose exact first ten hits are "
        "computed to measure how far the engine agrees (exact_recall@10); 0 measures nothing",
    )
    bmp: BmpSearchSettings = BmpSearchSettings()
    seismic: SeismicSearchSettings = SeismicSearchSettings()


def for_engine(settings: IndexSettings | SearchSettings, engine: str) -> dict[str, Any]:
    """The settings as JSON has them, without the options of other engines."""
    others = set(get_args(IndexSettings.model_fields["engine"].annotation)) - {engine}
    return settings.model_dump(mode="json", exclude=others)


class Bm25Settings(Settings):
    """The lexical baseline, through the same Lucene."""

    k1: float = Field(0.9, ge=0, description="term frequency saturation")
    b: float = Field(0.4, ge=0, le=1, description="length normalisation")


class PaperSettings(Settings):
    """The paper's tables and figures."""

    tolerance: float = Field(
        0.01, ge=0, description="largest difference of a measure that counts as reproduced"
    )
    norm_tolerance: float = Field(
        0.01, ge=0, description="the same for norms, relative to the published value"
    )
    partial_means: bool = Field(
        False,
        description="take the mean over BEIR of the data sets that are there, and say how many",
    )


class ReportSettings(Settings):
    """The page that shows the results."""

    queries: int = Field(
        3, ge=1, description="queries, each with a relevant document, whose terms are shown"
    )
    terms: int = Field(15, ge=1, le=100, description="terms of most weight shown of each text")


class DatasetEntry(Settings):
    """What all data sets of the registry have in common."""

    measures: list[str] = Field(
        default=["nDCG@10", "RR@10", "R@100"],
        min_length=1,
        description="measures as ir_measures names them; the first is the headline",
    )
    remove_self_hits: bool = Field(
        False, description="drop hits whose doc_id equals the query_id (ArguAna, Quora)"
    )
    shards: int | None = Field(None, ge=1, description="corpus shards where encode.shards is unset")


class PydocsDataset(DatasetEntry):
    """Docstrings of the installed packages: the summary line finds the rest of its docstring."""

    source: Literal["pydocs"]
    split: Literal["in-domain", "out-of-domain"] = Field(
        description="in-domain: held-out functions of the training packages; out-of-domain: "
        "packages never trained on"
    )
    documents: int = Field(2000, ge=1, description="documents in the corpus")
    queries: int = Field(300, ge=1, description="judged queries, each with one relevant document")
    train_pairs: int = Field(12_000, ge=0, description="most rows of train.parquet")
    packages: list[str] | None = Field(
        None, description="distributions to read instead of the embedded list (tests)"
    )
    seed: int = Field(0, ge=0, description="seed of the split")


class PathDataset(DatasetEntry):
    """A folder of the user's in BEIR layout."""

    source: Literal["path"]
    path: str = Field(description="folder with corpus.jsonl[.gz], queries.jsonl[.gz] and qrels")
    qrels: str | None = Field(
        None, description="qrels file in the folder (BEIR .tsv[.gz] or TREC); else qrels/test.tsv"
    )
    train: str | None = Field(
        None,
        description="training rows: a .jsonl[.gz] or .parquet file in the folder with query, "
        "positive and optionally negative and teacher scores, or 'title' for title -> text pairs "
        "of the corpus",
    )


class HubFiles(Settings):
    """Data files in one hub repository of data sets."""

    id: str = Field(description="repository id, owner/name")
    revision: str = Field("main", description="commit, tag or branch; a commit is best")
    files: list[str] = Field(min_length=1, description="file names or globs in the repository")


class HubDataset(DatasetEntry):
    """A data set in data files (parquet, jsonl, tsv) on the hub."""

    source: Literal["hub"]
    corpus: HubFiles | None = Field(None, description="files with _id, title, text")
    corpus_from: Slug | None = Field(
        None,
        description="data set whose corpus, vectors and indexes this one shares, instead of corpus",
    )
    queries: HubFiles | None = Field(None, description="files with _id, text")
    qrels: HubFiles | None = Field(None, description="files with query-id, corpus-id, score")
    train: HubFiles | None = Field(None, description="files with query, positive, negative")

    @model_validator(mode="after")
    def _something_to_download(self) -> "HubDataset":
        if self.corpus and self.corpus_from:
            raise ValueError("corpus and corpus_from overlap; give one of the two")
        judged = [self.corpus or self.corpus_from, self.queries, self.qrels]
        if any(judged) and not all(judged):
            raise ValueError(
                "corpus (or corpus_from), queries and qrels go together: give all three or none"
            )
        if not any(judged) and self.train is None:
            raise ValueError("give corpus, queries and qrels, or train, or both")
        return self


class BackboneEntry(Settings):
    """What all backbones of the registry have in common."""

    head_gain: float = Field(
        1.0,
        gt=0,
        description="multiply the head (output projection and bias, untied) after download: a "
        "controlled large-norm twin",
    )


class HubBackbone(BackboneEntry):
    """A masked language model on the hub."""

    source: Literal["hub"]
    id: str = Field(description="repository id, owner/name")
    revision: str = Field("main", description="commit, tag or branch; a commit is best")
    trust_remote_code: bool = Field(
        False, description="run the repository's own Python code; needs a pinned commit"
    )
    allow_pickled_weights: bool = Field(
        False,
        description="where the repository has no safetensors, take its pickled weights, by "
        "torch's weights_only loader, which runs none of their code",
    )

    @model_validator(mode="after")
    def _remote_code_is_pinned(self) -> "HubBackbone":
        pinned = len(self.revision) == 40 and all(c in "0123456789abcdef" for c in self.revision)
        if self.trust_remote_code and not pinned:
            raise ValueError("trust_remote_code needs revision to be a full 40-digit commit")
        return self


class PathBackbone(BackboneEntry):
    """A checkpoint folder of the user's."""

    source: Literal["path"]
    path: str = Field(description="folder that AutoModelForMaskedLM and AutoTokenizer load")


class PretrainBackbone(BackboneEntry):
    """A small masked language model pretrained in the run."""

    source: Literal["pretrain"]
    architecture: Literal["bert", "modernbert"] = Field(description="transformers architecture")
    dataset: Slug = Field(description="data set whose train.parquet gives the text")
    vocabulary: int = Field(8192, ge=64, description="WordPiece vocabulary size")
    layers: int = Field(2, ge=1, description="transformer layers")
    hidden: int = Field(128, ge=8, description="hidden width")
    heads: int = Field(2, ge=1, description="attention heads")
    steps: int = Field(450, ge=1, description="optimizer steps")
    batch_size: int = Field(64, ge=1, description="texts per step")
    length: int = Field(64, ge=8, description="tokens per text, specials included")
    max_positions: int = Field(512, ge=8, description="longest input of the model")
    learning_rate: float = Field(3e-3, gt=0, description="peak learning rate")
    mask: float = Field(0.3, gt=0, lt=1, description="part of the tokens that must be predicted")
    keep: float = Field(
        0.5, ge=0, le=1, description="part of those that stay visible (denoising identity)"
    )
    z_loss: float = Field(0.1, ge=0, description="weight of (logsumexp(logits) - z_target)^2")
    z_target: float = Field(4.0, description="log-partition that the logits are drawn to")
    seed: int = Field(0, ge=0, description="seed of weights, order and masks")


class TwinBackbone(BackboneEntry):
    """The same weights as another backbone, with the head multiplied by head_gain."""

    source: Literal["twin"]
    of: Slug = Field(description="backbone whose weights are taken")


Dataset = Annotated[PydocsDataset | PathDataset | HubDataset, Field(discriminator="source")]
Backbone = Annotated[
    HubBackbone | PathBackbone | PretrainBackbone | TwinBackbone, Field(discriminator="source")
]
