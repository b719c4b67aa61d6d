"""Claims about training Punkt: the model is NLTK's, from any text."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from nltk.tokenize.punkt import PunktTrainer as Reference

from data_prep.punkt import PunktModel
from data_prep.sentences import train_model

from .real_text import corpus_files, fuzz_documents, lines_of, some_files
from .test_punkt import hard_lines


def by_nltk(documents: Iterable[str]) -> PunktModel:
    trainer = Reference()
    for document in documents:
        trainer.train(document, finalize=False)
    trainer.finalize_training()
    return PunktModel(**vars(trainer.get_params()))


def documents_of(lines: list[str], longest: int, seed: int) -> list[str]:
    """Groups lines into documents of up to `longest` of them, some with empty lines between."""
    source, documents = random.Random(seed), []
    while lines:
        size = source.randint(1, longest)
        documents.append(source.choice(["\n", "\n\n", "\n \n"]).join(lines[:size]))
        lines = lines[size:]
    return documents


def test_the_model_of_real_text_is_nltks(shared_data: Path) -> None:
    found = []
    for seed, path in enumerate(some_files(shared_data)):
        documents = documents_of(lines_of(path, limit=1000), longest=60, seed=seed)
        found.append(train_model(documents).files())
        assert found[-1] == by_nltk(documents).files(), path.name
    assert all(any(files[name] for files in found) for name in found[0])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_model_of_whole_files_is_nltks(shared_data: Path) -> None:
    for path in corpus_files(shared_data):
        documents = documents_of(lines_of(path, limit=4000), longest=200, seed=0)
        assert train_model(documents).files() == by_nltk(documents).files(), path.name


def test_the_model_of_hard_lines_is_nltks() -> None:
    documents = documents_of(list(hard_lines(6000, seed=5)), longest=12, seed=1)
    model = train_model(documents)
    assert model.abbrev_types
    assert model.files() == by_nltk(documents).files()


def test_the_model_of_every_kind_of_character_is_nltks() -> None:
    documents = list(fuzz_documents(200_000, seed=2))
    assert train_model(documents).files() == by_nltk(documents).files()


@pytest.mark.parametrize("documents", [[], [""], ["\n \n"], ["."], ["a"], ["A. B.", "a. b."], ["5. 5. x. x."]])
def test_the_model_of_almost_no_text_is_nltks(documents: list[str]) -> None:
    assert train_model(documents).files() == by_nltk(documents).files()
