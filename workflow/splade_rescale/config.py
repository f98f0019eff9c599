"""Configuration: read, merged with the registries, validated, and turned into cells.

Everything that can be known to be wrong without running a job is refused here, with the file
and key at fault, what was found and what is allowed.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError
from pydantic import WithJsonSchema as JsonSchema

from splade_rescale.engine_packages import check_engine
from splade_rescale.errors import UserError
from splade_rescale.files import read_json_object
from splade_rescale.positions import check_length
from splade_rescale.scale import AUTO, canonical_k
from splade_rescale.settings import (
    Backbone,
    Bm25Settings,
    Dataset,
    EncodeSettings,
    HubDataset,
    IndexSettings,
    NormsSettings,
    PaperSettings,
    PathBackbone,
    PathDataset,
    PretrainBackbone,
    PydocsDataset,
    ReportSettings,
    RescaleSettings,
    SearchSettings,
    Settings,
    Slug,
    TrainSettings,
    TwinBackbone,
)

#: Names that the workflow uses itself below results/.
RESERVED = frozenset(
    {"arms", "bm25", "paper", "report", "bench"}
    | {"norms.csv", "activation.csv", "table.csv", "report.html"}
)
#: Names that the workflow uses itself beside the folders of data sets.
RESERVED_DATASETS = frozenset({"model", "checkpoints"})


def _scale(value: object) -> str:
    if value == AUTO:
        return AUTO
    try:
        return canonical_k(value)
    except UserError as error:
        raise ValueError(f"{error}; or {AUTO}") from None


Scale = Annotated[
    str,
    BeforeValidator(_scale),
    JsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}),
]


def _seed(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("expected a whole number")
    return value


Seed = Annotated[int, Field(ge=0, lt=2**32), BeforeValidator(_seed)]


class Registry(Settings):
    """Entries of the user's own, beside those of config/backbones.yaml and datasets.yaml."""

    backbones: dict[Slug, Backbone] = Field({}, description="slug -> backbone")
    datasets: dict[Slug, Dataset] = Field({}, description="slug -> data set")


class Arm(Settings):
    """A variation of the experiment: the options it changes, and on which part of the grid."""

    rescale: dict[str, Any] = Field({}, description="keys of rescale that differ")
    train: dict[str, Any] = Field({}, description="keys of train that differ")
    encode: dict[str, Any] = Field({}, description="keys of encode that differ")
    backbones: list[Slug] | None = Field(None, min_length=1, description="all if unset")
    scales: list[Scale] | None = Field(None, min_length=1, description="all if unset")
    seeds: list[Seed] | None = Field(None, min_length=1, description="all if unset")


class Config(Settings):
    """One experiment: the grid of cells and the settings of every stage."""

    backbones: list[Slug] = Field(min_length=1, description="slugs of the backbones compared")
    scales: list[Scale] = Field(min_length=1, description="divisors k of the MLM head")
    seeds: list[Seed] = Field([42], min_length=1, description="seeds of training")
    datasets: list[Slug] = Field(min_length=1, description="slugs of the data sets evaluated")
    baselines: list[Literal["bm25"]] = Field(["bm25"], description="rows beside the cells")
    baseline_backbone: Slug | None = Field(
        None, description="backbone whose k = 1 is compared with; the first one if unset"
    )
    arms: dict[Slug, Arm] = Field(
        {}, description="name -> options that the arm changes; its results lie in results/arms/"
    )
    registry: Registry = Field(Registry(), description="own backbones and data sets")
    norms: NormsSettings = NormsSettings()
    rescale: RescaleSettings = RescaleSettings()
    train: TrainSettings
    encode: EncodeSettings = EncodeSettings()
    index: IndexSettings = IndexSettings()
    search: SearchSettings = SearchSettings()
    bm25: Bm25Settings = Bm25Settings()
    paper: PaperSettings = PaperSettings()
    report: ReportSettings = ReportSettings()


class ArmGrid(Settings):
    """The models of one arm."""

    backbones: list[Slug]
    scales: list[Scale]
    seeds: list[int]


class Grid(Settings):
    """The rows of the table: which cells, on which data sets, with which measures."""

    arms: dict[str, ArmGrid] = Field(description="arm -> its models; the main one has no name")
    measures: dict[Slug, list[str]] = Field(description="data set -> its measures")
    corpora: dict[Slug, Slug] = Field(description="data set -> the one whose corpus it searches")
    baselines: list[str]
    baseline_backbone: Slug


class _UniqueKeyLoader(yaml.SafeLoader):
    """A YAML loader that refuses a key given twice, where PyYAML would keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[Any, int] = {}
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == "tag:yaml.org,2002:merge":  # what `<<` brings in gives way
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise UserError(f"line {line}: a list or mapping cannot be a key")
            key = self.construct_object(key_node, deep=True)
            folded = key.lower() if isinstance(key, str) else key
            if folded in lines:
                raise UserError(
                    f"line {line}: key {key!r} stands a second time (first in line "
                    f"{lines[folded]}; upper and lower case count as equal)"
                )
            lines[folded] = line
        return super().construct_mapping(node, deep)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML (or JSON) mapping.

    Raises:
        UserError: missing file, bad syntax, not a mapping, or a key given twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        value = yaml.load(text, Loader=_UniqueKeyLoader)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{path}: not valid YAML: {error}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a mapping of keys, found {type(value).__name__}")
    return value


def _fields_at(model: type[BaseModel], location: Iterable[str | int]) -> list[str]:
    """Keys allowed at `location`, following plain nested settings as far as they go."""
    for part in location:
        field = model.model_fields.get(str(part))
        if field is None or not (
            isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        ):
            return []
        model = field.annotation
    return sorted(model.model_fields)


def _entry_fields(data: Any, location: tuple[str | int, ...]) -> list[str]:
    """Keys allowed in the registry entry whose tag pydantic put into `location`."""
    models = {
        "pydocs": PydocsDataset,
        "pretrain": PretrainBackbone,
        "twin": TwinBackbone,
    }
    for part in location:
        if part in models:
            return sorted(models[str(part)].model_fields)
    return []


def _describe(error: Mapping[str, Any], model: type[BaseModel], source: str) -> str:
    location = tuple(part for part in error["loc"] if part != "[key]")
    if error["type"] == "boolean":
        location += (error["ctx"]["name"],)
    tags = {"pydocs", "path", "hub", "pretrain", "twin"}
    shown = ""
    for position, part in enumerate(location):
        is_tag = part in tags and position + 1 < len(location) and position >= 1
        if is_tag:
            continue
        shown += f"[{part}]" if isinstance(part, int) else f".{part}" if shown else str(part)
    if error["type"] == "extra_forbidden":
        allowed = _fields_at(model, location[:-1]) or _entry_fields(None, location)
        close = difflib.get_close_matches(str(location[-1]), allowed, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        listed = f"; allowed: {', '.join(allowed)}" if allowed else ""
        return f"{source}: {shown}: unknown key{hint}{listed}"
    if error["type"] == "missing":
        return f"{source}: {shown}: missing"
    message = error["msg"].removeprefix("Value error, ")
    where = f"{source}: {shown}" if shown else source
    found = error["input"][location[-1]] if error["type"] == "boolean" else error["input"]
    return f"{where}: {message}, found {found!r}"


def validate(model: type[BaseModel], data: Any, source: str) -> Any:
    """Return `data` as `model`, or raise UserError with a line per problem that names `source`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        lines = [_describe(e, model, source) for e in error.errors()]
        raise UserError("\n".join(dict.fromkeys(lines))) from None


def _read_registry(path: Path, kind: Literal["backbones", "datasets"]) -> dict[str, Any]:
    registry = validate(Registry, {kind: read_yaml(path)}, str(path))
    return getattr(registry, kind)


def _refuse_duplicates(config: Config, source: str) -> None:
    for key in ("backbones", "scales", "seeds", "datasets", "baselines"):
        values = [str(value).lower() for value in getattr(config, key)]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise UserError(f"{source}: {key}: given more than once: {', '.join(twice)}")


def _known(source: str, key: str, slug: str, known: Iterable[str]) -> None:
    known = sorted(known)
    if slug not in known:
        close = difflib.get_close_matches(slug, known, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UserError(
            f"{source}: {key}: unknown slug {slug!r}{hint}; known: {', '.join(known)} "
            "(add your own under registry:)"
        )


_GRID_KEYS = ("backbones", "scales", "seeds")


class Experiment(NamedTuple):
    """A validated configuration with the registries it refers to."""

    config: Config
    backbones: dict[str, Any]
    datasets: dict[str, Any]
    source: str

    def arm(self, name: str) -> Config:
        """The configuration of an arm; the main one has no name.

        Raises:
            UserError: the arm's options are not valid.
        """
        if not name:
            return self.config
        arm = self.config.arms[name]
        source = f"{self.source}: arms.{name}"
        own = {key: value for key in _GRID_KEYS if (value := getattr(arm, key)) is not None}
        for key in ("rescale", "train", "encode"):
            given = getattr(self.config, key)
            changed = {**given.model_dump(exclude_unset=True), **getattr(arm, key)}
            own[key] = validate(type(given), changed, f"{source}.{key}")
        return self.config.model_copy(update=own)

    def grid(self) -> Grid:
        """The rows of the table."""
        arms = {name: self.arm(name) for name in ("", *self.config.arms)}
        return Grid(
            arms={
                name: ArmGrid(**{key: getattr(arm, key) for key in _GRID_KEYS})
                for name, arm in arms.items()
            },
            measures={slug: self.datasets[slug].measures for slug in self.config.datasets},
            corpora={slug: self.corpus_of(slug) for slug in self.config.datasets},
            baselines=self.config.baselines,
            baseline_backbone=self.config.baseline_backbone or self.config.backbones[0],
        )

    def corpus_of(self, dataset: str) -> str:
        """The data set whose corpus, vectors and indexes serve this one: itself, mostly."""
        return getattr(self.datasets[dataset], "corpus_from", None) or dataset

    def shards(self, dataset: str) -> int:
        """Corpus shards of a data set: what the configuration says goes before the registry."""
        encode = self.config.encode
        own = None if "shards" in encode.model_fields_set else self.datasets[dataset].shards
        return own or encode.shards


def _has_train(entry: Any) -> bool:
    if isinstance(entry, PydocsDataset):
        return entry.split == "in-domain" and entry.train_pairs > 0
    return entry.train is not None


def _check_dataset(
    source: str,
    slug: str,
    experiment: Experiment,
    *,
    evaluated: bool = False,
    trained: bool = False,
) -> None:
    key = f"registry entry of data set {slug}"
    entry = experiment.datasets[slug]
    if trained and not _has_train(entry):
        raise UserError(f"{source}: {key}: has no training rows (train), but is trained on")
    if evaluated:
        if isinstance(entry, HubDataset) and entry.queries is None:
            raise UserError(f"{source}: {key}: has no corpus, queries and qrels to evaluate on")
        owner = experiment.corpus_of(slug)
        _known(source, f"{key}: corpus_from", owner, experiment.datasets)
        if owner != slug and not getattr(experiment.datasets[owner], "corpus", True):
            raise UserError(f"{source}: {key}: corpus_from: {owner} has no corpus of its own")
        from splade_rescale.evaluate import check_measures

        try:
            check_measures(entry.measures)
        except UserError as error:
            raise UserError(f"{source}: {key}: measures: {error}") from None
    if isinstance(entry, PathDataset):
        from splade_rescale.beir import check_folder

        try:
            check_folder(entry)
        except UserError as error:
            raise UserError(f"{source}: {key}: {error}") from None


def _read_checkpoint_config(entry: PathBackbone) -> dict[str, Any]:
    folder = Path(os.path.expanduser(entry.path))  # Path's own method fails on an unknown user
    if not (folder / "config.json").is_file():
        raise UserError(f"no config.json in {entry.path!r}")
    return read_json_object(folder / "config.json")


def _check_backbone(source: str, slug: str, experiment: Experiment) -> None:
    config = experiment.config
    key = f"registry entry of backbone {slug}"
    entry = experiment.backbones[slug]
    if entry.head_gain != 1 and config.rescale.tying == "shared":
        raise UserError(
            f"{source}: {key}: head_gain {entry.head_gain} unties the head, so it needs "
            "rescale.tying: untied, found shared"
        )
    seen = [slug]
    while isinstance(entry, TwinBackbone):
        _known(source, f"{key}: of", entry.of, experiment.backbones)
        if entry.of in seen:
            raise UserError(f"{source}: {key}: of: a twin of itself ({' -> '.join(seen)})")
        seen.append(entry.of)
        entry = experiment.backbones[entry.of]
    longest = max(
        config.train.query_length,
        config.train.document_length,
        config.encode.query_length,
        config.encode.document_length,
    )
    if isinstance(entry, PathBackbone):
        try:
            checkpoint = _read_checkpoint_config(entry)
        except UserError as error:
            raise UserError(f"{source}: {key}: path: {error}") from None
        check_length(f"{source}: {key}: path: {entry.path}", checkpoint, longest)
    if isinstance(entry, PretrainBackbone):
        _known(source, f"{key}: dataset", entry.dataset, experiment.datasets)
        _check_dataset(source, entry.dataset, experiment, trained=True)
        longest = max(longest, entry.length)
        if longest > entry.max_positions:
            raise UserError(
                f"{source}: {key}: max_positions: {entry.max_positions} is less than the longest "
                f"text length of train, encode and this entry, {longest}"
            )


def load_experiment(data: Mapping[str, Any], registries: Path, source: str) -> Experiment:
    """Validate a configuration and everything that its grid refers to.

    Args:
        data: the configuration as read.
        registries: folder with backbones.yaml and datasets.yaml.
        source: name of the configuration in error messages, usually its path.

    Raises:
        UserError: the first problems found, one a line.
    """
    config: Config = validate(Config, dict(data), source)
    _refuse_duplicates(config, source)
    merged: dict[str, dict[str, Any]] = {}
    for kind in ("backbones", "datasets"):
        path = registries / f"{kind}.yaml"
        embedded = _read_registry(path, kind)
        own = getattr(config.registry, kind)
        both = sorted(embedded.keys() & own.keys())
        if both:
            raise UserError(
                f"{source}: registry.{kind}.{both[0]}: this slug is taken by {path}; choose another"
            )
        merged[kind] = embedded | own
        names = RESERVED | RESERVED_DATASETS if kind == "datasets" else RESERVED
        reserved = sorted(merged[kind].keys() & names)
        if reserved:
            raise UserError(f"{source}: registry.{kind}.{reserved[0]}: this name is reserved")
    experiment = Experiment(config, merged["backbones"], merged["datasets"], source)
    for key in ("backbones", "datasets"):
        for position, slug in enumerate(getattr(config, key)):
            _known(source, f"{key}[{position}]", slug, merged[key])
    _known(source, "train.dataset", config.train.dataset, merged["datasets"])
    if config.baseline_backbone is not None:
        _known(source, "baseline_backbone", config.baseline_backbone, config.backbones)
    try:
        check_engine(config.index.engine)
    except UserError as error:
        raise UserError(f"{source}: index.engine: {error}") from None
    for slug in config.datasets:
        _check_dataset(source, slug, experiment, evaluated=True)
    _check_arm(source, experiment)
    for name, arm in config.arms.items():
        inside = f"{source}: arms.{name}"
        if not any(arm.model_dump(exclude_none=True).values()):
            raise UserError(f"{inside}: changes nothing; give keys of rescale, train or encode")
        for slug in arm.backbones or []:
            _known(inside, "backbones", slug, merged["backbones"])
        varied = Experiment(experiment.arm(name), *experiment[1:])
        _refuse_duplicates(varied.config, inside)
        _known(inside, "train.dataset", varied.config.train.dataset, merged["datasets"])
        _check_arm(inside, varied)
    return experiment


def _check_arm(source: str, experiment: Experiment) -> None:
    train = experiment.config.train
    if train.max_steps is not None and "epochs" in train.model_fields_set:
        raise UserError(f"{source}: train: max_steps and epochs overlap; give one of the two")
    _check_dataset(source, train.dataset, experiment, trained=True)
    for slug in experiment.config.backbones:
        _check_backbone(source, slug, experiment)


def read_experiment(path: str | Path, registries: Path) -> Experiment:
    """Read one configuration file and validate it as `load_experiment` does."""
    return load_experiment(read_yaml(path), registries, str(path))


def json_schemas() -> dict[str, dict[str, Any]]:
    """JSON schemas for editors: file name below config/schema -> schema."""
    backbones: TypeAdapter[Any] = TypeAdapter(dict[Slug, Backbone])
    datasets: TypeAdapter[Any] = TypeAdapter(dict[Slug, Dataset])
    return {
        "config.schema.json": Config.model_json_schema(),
        "backbones.schema.json": backbones.json_schema(),
        "datasets.schema.json": datasets.json_schema(),
    }
