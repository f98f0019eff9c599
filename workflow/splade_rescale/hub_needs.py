"""The hub repositories that an experiment downloads from."""

from collections.abc import Iterator

from splade_rescale.config import Experiment
from splade_rescale.settings import HubBackbone, HubDataset, PretrainBackbone, TwinBackbone


def repositories_of(experiment: Experiment) -> list[str]:
    """`models/owner/name` and `datasets/owner/name`, each once, sorted."""
    return sorted({*_models(experiment), *_datasets(experiment)})


def _backbones(experiment: Experiment) -> Iterator[str]:
    for name in ("", *experiment.config.arms):
        yield from experiment.arm(name).backbones


def _models(experiment: Experiment) -> Iterator[str]:
    for slug in _backbones(experiment):
        entry = experiment.backbones[slug]
        while isinstance(entry, TwinBackbone):
            entry = experiment.backbones[entry.of]
        if isinstance(entry, HubBackbone):
            yield f"models/{entry.id}"


def _datasets(experiment: Experiment) -> Iterator[str]:
    slugs = {*experiment.config.datasets, *map(experiment.corpus_of, experiment.config.datasets)}
    slugs |= {experiment.arm(name).train.dataset for name in ("", *experiment.config.arms)}
    for slug in _backbones(experiment):
        entry = experiment.backbones[slug]
        while isinstance(entry, TwinBackbone):
            entry = experiment.backbones[entry.of]
        if isinstance(entry, PretrainBackbone):
            slugs.add(entry.dataset)
    for slug in slugs:
        entry = experiment.datasets[slug]
        if isinstance(entry, HubDataset):
            for files in (entry.corpus, entry.queries, entry.qrels, entry.train):
                if files is not None:
                    yield f"datasets/{files.id}"
