"""Claims about scores of sentences, against Hugging Face's probabilities."""

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import processors
from torch.nn.functional import softplus
from transformers import (
    AutoTokenizer,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    PreTrainedTokenizerFast,
)

from electra_sampler.foundation.config import ConfigError
from finetune.scoring import batches_by_length, open_scorer
from pretrain.export import ExportOptions
from pretrain.export import main as export
from pretrain.huggingface.stored import SAMPLING_HEAD
from tests.finetune.conftest import M, sampler, untrained_run

SENTENCES = ["word1 word2 good", "bad word3 , word4 word5 .", "good", "word9 word9 bad word9"]
ENGLISH = ["The value of a name.", "Returns the number of items in it", "import", "a b c d e f", "a [MASK] of it"]


@torch.inference_mode()
def test_scores_of_a_stock_pair_equal_the_formula_on_hugging_faces_outputs(
    stock_model: Path, stock_generator: Path
) -> None:
    scorer = open_scorer(
        str(stock_model), ["discriminator", "generator", "likelihood"], str(stock_generator), mask_share=M
    )
    tokenizer = AutoTokenizer.from_pretrained(stock_model)
    discriminator = ElectraForPreTraining.from_pretrained(stock_model)
    generator = ElectraForMaskedLM.from_pretrained(stock_generator)
    found = scorer.scores(SENTENCES)
    for sentence in SENTENCES:
        ids = tokenizer(sentence, return_tensors="pt").input_ids
        d_T = discriminator(ids).logits[0, 1:-1].double()
        for place, score in enumerate(found[sentence]["generator"], 1):
            masked = ids.clone()
            masked[0, place] = tokenizer.mask_token_id
            q = generator(masked).logits[0, place].double().softmax(-1)[ids[0, place]]
            odds = torch.exp(-d_T[place - 1])
            p = M * q * odds / (1 - M + M * q * (1 + odds))
            assert score == pytest.approx(q.log().item(), abs=1e-5)
            assert found[sentence]["likelihood"][place - 1] == pytest.approx(p.log().item(), abs=1e-5)
        np.testing.assert_allclose(found[sentence]["discriminator"], torch.log(1 - d_T.sigmoid()), atol=1e-5)


def test_scores_do_not_depend_on_batches_or_precision(
    stock_model: Path, stock_generator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = open_scorer(str(stock_model), ["likelihood"], str(stock_generator), mask_share=M)
    together = scorer.scores([*SENTENCES, "Word1  word2 GOOD", "word2 word1 good"])
    assert together["Word1  word2 GOOD"] is together["word1 word2 good"]  # equal tokens tie exactly
    monkeypatch.setattr("finetune.scoring.TOKENS_PER_BATCH", 1)
    monkeypatch.setattr("finetune.scoring.ELEMENTS", 1)
    scorer.discriminator.double()
    scorer.generator.double()
    for sentence in SENTENCES:
        alone = scorer.scores([sentence])[sentence]["likelihood"]
        np.testing.assert_allclose(together[sentence]["likelihood"], alone, atol=1e-5)


def test_batches_hold_each_sequence_once_and_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finetune.scoring.TOKENS_PER_BATCH", 10)
    sequences = {(*range(length + 1), extra) for length in range(5) for extra in range(7)}
    batches = [*batches_by_length(sequences)]
    assert sorted(sequence for batch in batches for sequence in batch) == sorted(sequences)
    assert all(len({len(sequence) for sequence in batch}) == 1 for batch in batches)
    assert max(sum(map(len, batch)) for batch in batches) <= 10


@pytest.mark.parametrize(
    ("preset", "objective", "overrides"),
    [
        ("tiny", "electra", ()),
        ("tiny", "hp_dist", ("model.relative_position=false",)),
        ("tiny", "hp_loss", ("objective.sampling_bias=false",)),
        ("modern_tiny", "hp_loss", ()),
        ("modern_tiny", "hp_dist", ()),
    ],
)
def test_the_cards_function_a_run_and_its_export_agree_and_follow_the_runs_own_sampler(
    preset: str,
    objective: str,
    overrides: tuple[str, ...],
    shards_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Special tokens in a sentence are text to all of them."""
    run, out = untrained_run(tmp_path / "run", shards_folder, preset, objective, *overrides), tmp_path / "out"
    export(ExportOptions(run=run, out=out))
    exported = open_scorer(str(out), ["likelihood", "generator"])
    found, of_run = exported.scores(ENGLISH), open_scorer(str(run), ["likelihood"]).scores(ENGLISH)
    (snippet,) = re.findall(r"```python\n(.*?)```", (out / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(out)
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(snippet, names)
    for sentence in ENGLISH:
        rounding = 1e-5 if preset == "modern_tiny" else 0  # projections multiplied into the generator's tables
        np.testing.assert_allclose(
            found[sentence]["likelihood"], of_run[sentence]["likelihood"], rtol=rounding, atol=rounding
        )
        by_card = names["log_likelihood"](sentence).item()
        assert by_card == pytest.approx(found[sentence]["likelihood"].sum(), abs=1e-4, rel=1e-5)
    (out / "generator" / SAMPLING_HEAD).unlink(missing_ok=True)
    without = open_scorer(str(out), ["likelihood"]).scores(ENGLISH)
    same = [np.allclose(found[text]["likelihood"], without[text]["likelihood"], atol=0.01) for text in ENGLISH]
    assert all(same) if objective == "electra" else not any(same)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("objective", "switch"),
    [
        ("electra", "temperature=2"),
        ("hp_loss", "forbid_original=true"),
        ("hp_loss", "temperature=2"),
        ("hp_dist", "mixture=0.3"),
    ],
)
def test_proposals_have_the_probability_that_the_run_draws_them_with(
    objective: str, switch: str, shards_folder: Path, tmp_path: Path
) -> None:
    run = untrained_run(tmp_path / "run", shards_folder, "tiny", objective, f"objective.{switch}")
    scorer = open_scorer(str(run))
    ids = scorer.ids_of(ENGLISH[0])
    logit_V, *head_V = (score_BV[0].double() for score_BV in scorer.masked_scores(torch.tensor([ids]), 2))
    found = scorer.propose(ids, 2)
    torch.testing.assert_close(found.p_G_V, logit_V.softmax(-1))
    assert (found.estimated_loss_V is not None) == (objective == "hp_loss")
    if objective == "electra":
        assert found.p_S_V is None
        return
    assert scorer.sampling is not None
    q_V = sampler(logit_V.log_softmax(-1), head_V[0], scorer.sampling, ids[2])
    torch.testing.assert_close(found.p_S_V, q_V)
    if found.estimated_loss_V is not None:
        loss_V = torch.where(torch.arange(len(q_V)) == ids[2], softplus(-head_V[0]), softplus(head_V[0]))
        torch.testing.assert_close(found.estimated_loss_V, loss_V)


def test_a_missing_sampling_head_is_said(
    shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = untrained_run(tmp_path / "run", shards_folder, "tiny", "hp_loss"), tmp_path / "out"
    export(ExportOptions(run=run, out=out))
    open_scorer(str(out), ["likelihood"])
    assert not capsys.readouterr().err
    (out / "generator" / SAMPLING_HEAD).unlink()
    open_scorer(str(out), ["likelihood"])
    assert re.search(r"trained with hp_loss, whose sampler \S+ does not hold: .* from p_G", capsys.readouterr().err)


def test_a_masked_language_models_likelihood_is_its_own(stock_generator: Path) -> None:
    for scores in open_scorer(str(stock_generator), ["generator", "likelihood"]).scores(SENTENCES).values():
        np.testing.assert_array_equal(scores["generator"], scores["likelihood"])


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForPreTraining", "MPNetForMaskedLM"])
@torch.inference_mode()
def test_a_bert_or_mpnet_gives_the_scores_of_hugging_faces(kind: str, stock_model: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(stock_model)
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = getattr(transformers, kind)
    theirs = model(model.config_class(vocab_size=len(tokenizer), initializer_range=0.3, **sizes)).eval()
    for parameter in theirs.parameters():  # biases away from 0
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    for sentence, scores in open_scorer(str(tmp_path), ["generator"]).scores(SENTENCES).items():
        ids_BL = tokenizer(sentence, return_tensors="pt").input_ids
        for place, score in enumerate(scores["generator"], 1):
            masked_BL = ids_BL.index_fill(1, torch.tensor([place]), tokenizer.mask_token_id)
            log_p_V = theirs(masked_BL)[0][0, place].double().log_softmax(-1)
            assert score == pytest.approx(log_p_V[ids_BL[0, place]].item(), abs=1e-5)


MINICONS = """
import json
import sys
from minicons.scorer import MaskedLMScorer

scored = MaskedLMScorer(sys.argv[1], "cpu").token_score(json.loads(sys.argv[2]))
print(json.dumps([[score for _, score in sentence] for sentence in scored]))
"""


@pytest.mark.long
def test_the_generators_half_is_minicons_masked_score(stock_generator: Path, tmp_path: Path) -> None:
    """The peer (Misra 2022) masks one token at a time too; it needs Transformers 4 and, used so, no other package."""
    for needed in (("transformers==4.57.*", "wonderwords"), ("--no-deps", "minicons==0.3.39")):
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", tmp_path, *needed], check=True)
    arguments = [sys.executable, "-c", MINICONS, str(stock_generator), json.dumps(SENTENCES)]
    others = os.environ | {"PYTHONPATH": str(tmp_path)}
    theirs = json.loads(subprocess.run(arguments, check=True, capture_output=True, env=others, cwd=tmp_path).stdout)
    scores = open_scorer(str(stock_generator), ["generator"]).scores(SENTENCES)
    for sentence, expected in zip(SENTENCES, theirs, strict=True):
        np.testing.assert_allclose(scores[sentence]["generator"], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("generator", "mask_share", "said"),
    [
        ("stock_generator", None, "mask_share: .* does not record .*; add --mask_share"),
        (
            None,
            M,
            "score: got likelihood, but .* has no generator inside; add --generator FOLDER or --score discriminator$",
        ),
        ("stock_model", M, "generator: .* is not a masked language model with the vocabulary of"),
    ],
)
def test_the_generator_and_the_share_of_masked_tokens_are_recorded_or_asked_for(
    generator: str | None, mask_share: float | None, said: str, stock_model: Path, request: pytest.FixtureRequest
) -> None:
    with pytest.raises(ConfigError, match=said):
        open_scorer(str(stock_model), ["likelihood"], generator and str(request.getfixturevalue(generator)), mask_share)


def test_a_damaged_record_is_named(shards_folder: Path, tmp_path: Path) -> None:
    kept = "objective.mask_keep_fraction=0.15"  # the generator sees, and repeats, these masked tokens
    run, out = untrained_run(tmp_path / "run", shards_folder, "tiny", "electra", kept), tmp_path / "out"
    export(ExportOptions(run=run, out=out))
    config = json.loads((out / "config.json").read_text())
    share = config["replacement_sampling"]["mask_share"]
    assert share == pytest.approx(0.85 * 5 / 29)  # of 32, 3 of them [CLS] and [SEP]
    config["replacement_sampling"]["mask_share"] = 1.5
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"replacement_sampling.*mask_share: got 1.5"):
        open_scorer(str(out), ["likelihood"])


def test_a_tokenizer_that_does_not_fit_is_refused(stock_model: Path, tmp_path: Path) -> None:
    """It puts no [CLS] and [SEP] around a text, or has more pieces than the model."""
    marks = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    for number, changed in enumerate(({}, {"extra_special_tokens": ["[ONE]"]})):
        folder = shutil.copytree(stock_model, tmp_path / str(number))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(stock_model, **marks | changed)
        if not changed:
            tokenizer.backend_tokenizer.post_processor = processors.Sequence([])
        tokenizer.save_pretrained(folder)
        said = r"model: (the tokenizer in \S+ does not fit;|tokenizer in \S+ has \d+ pieces,) expected"
        with pytest.raises(ConfigError, match=said):
            open_scorer(str(folder), ["discriminator"])


def test_a_sentence_beyond_the_positions_is_refused(stock_model: Path) -> None:
    scorer = open_scorer(str(stock_model), ["discriminator"])
    with pytest.raises(ConfigError, match="has 42 tokens; expected at most 32"):
        scorer.scores([" ".join(["word1"] * 40)])


def test_a_fine_tuned_model_is_refused(stock_model: Path, tmp_path: Path) -> None:
    from transformers import ElectraForSequenceClassification, ModernBertConfig, ModernBertForSequenceClassification

    ElectraForSequenceClassification(ElectraConfig.from_pretrained(stock_model)).save_pretrained(tmp_path / "electra")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    modern = ModernBertConfig(
        vocab_size=64, num_labels=1, **sizes, **dict.fromkeys(("pad_token_id", "eos_token_id"), 0)
    )
    ModernBertForSequenceClassification(modern).save_pretrained(tmp_path / "modern")
    for folder in tmp_path.iterdir():
        AutoTokenizer.from_pretrained(stock_model).save_pretrained(folder)
        with pytest.raises(ConfigError, match="no pre-training head"):
            open_scorer(str(folder), ["discriminator"])
