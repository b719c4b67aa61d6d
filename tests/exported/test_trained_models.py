"""Claims about the trained models of `models/`, in the hands of transformers and of the scorer."""

from pathlib import Path

import pytest
from transformers import AutoModelForPreTraining, AutoTokenizer

from finetune.scoring import open_scorer
from pretrain.huggingface import modeling_electra_sampler as code
from tests.conftest import REPOSITORY

MODELS = sorted((REPOSITORY / "models").iterdir())


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)
def test_a_trained_model_finds_a_wrong_word_in_plain_transformers_and_finds_it_less_likely(folder: Path) -> None:
    right, wrong = (f"he was elected to the united {word} senate in 1910 ." for word in ("states", "kitchen"))
    inputs = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)(wrong, return_tensors="pt")
    model = AutoModelForPreTraining.from_pretrained(folder, trust_remote_code=True)
    assert inputs.tokens()[model(**inputs).logits[0].argmax()] == "kitchen"
    scores = open_scorer(str(folder)).scores((right, wrong))
    assert scores[right]["likelihood"].sum() > scores[wrong]["likelihood"].sum()


def test_the_trained_models_are_small_and_carry_the_code_as_it_is() -> None:
    files = [path for folder in MODELS for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 30e6
    carried = {path.read_bytes() for path in files if path.suffix == ".py"}
    assert carried == {Path(code.__file__).read_bytes()}
