"""Claims about scores of sentences: Hugging Face's probabilities, and a likelihood that is exact where it can be."""

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
from torch import Tensor
from torch.nn.functional import softplus
from transformers import (
    AutoTokenizer,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    PreTrainedTokenizerFast,
)

from electra_sampler.foundation.config import ConfigError
from finetune.scoring import (
    Draws,
    batches_by_length,
    draws_of,
    log_likelihood,
    log_sum_of_others,
    open_scorer,
)
from pretrain.config import with_overrides
from pretrain.data.shards import Shards
from pretrain.engine.checkpoint import EngineState, save
from pretrain.export import ExportOptions
from pretrain.export import main as export
from pretrain.huggingface.stored import SAMPLING_HEAD, Sampling
from pretrain.presets import PRESETS, with_objective
from pretrain.runs.folder import CHECKPOINTS, describe, write_run
from pretrain.runs.models import build_model

SENTENCES = ["word1 word2 good", "bad word3 , word4 word5 .", "good", "word9 word9 bad word9"]
ENGLISH = ["The value of a name.", "Returns the number of items in it", "import", "a b c d e f"]
M = 0.15


def sampler(log_p_V: Tensor, z_V: Tensor, sampling: Sampling, original: int) -> Tensor:
    """The distribution that a replacement of one original token is drawn from, by the definitions of the method."""
    p_V = log_p_V.exp() ** (1 / sampling.temperature)
    if sampling.objective == "hp_loss":
        loss_V = softplus(z_V)
        loss_V[original] = softplus(-z_V[original])
        q_V = p_V * loss_V
    elif sampling.objective == "hp_dist":
        mixed = sampling.mixture
        q_V = (1 - mixed) * (z_V / sampling.temperature).softmax(-1) + mixed * log_p_V.exp()
    else:
        q_V = p_V
    if sampling.forbid_original:
        q_V[original] = 0
    return q_V / q_V.sum()


SWITCHES: list[dict[str, Any]] = [
    {"objective": "electra"},
    {"objective": "electra", "temperature": 2.0},
    {"objective": "hp_dist", "temperature": 1.3, "mixture": 0.2},
    {"objective": "hp_loss"},
    {"objective": "hp_loss", "temperature": 0.7},
    {"objective": "hp_loss", "forbid_original": True},
    {"objective": "electra", "forbid_original": True},
    {"objective": "electra", "temperature": 2.0, "importance_weighting": True},
    {"objective": "hp_loss", "importance_weighting": True},
]


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda one: " ".join(map(str, one.values())))
def test_an_optimal_discriminator_implies_the_true_probabilities(switches: dict[str, Any]) -> None:
    """Its logit is found by counting all originals and draws of a vocabulary of five. Where q depends on the original,
    the generator has to be optimal too.
    """
    V, random = 5, torch.Generator().manual_seed(0)
    sampling = Sampling(mask_share=M, **switches)
    log_p_V, log_p_G_V, z_V = (2 * torch.randn(V, generator=random, dtype=torch.float64) for _ in range(3))
    log_p_V, log_p_G_V = log_p_V.log_softmax(-1), log_p_G_V.log_softmax(-1)
    if sampling.objective == "hp_loss" or sampling.forbid_original:
        log_p_G_V = log_p_V
    shown_original_V = (1 - M) * log_p_V.exp()
    shown_replaced_V = torch.zeros(V, dtype=torch.float64)
    for original in range(V):
        q_V = sampler(log_p_G_V, z_V, sampling, original)
        weight_V = log_p_G_V.exp() / q_V if sampling.importance_weighting else torch.ones(V)
        shown_V = M * log_p_V[original].exp() * q_V * weight_V
        shown_original_V[original] += shown_V[original]
        shown_replaced_V += shown_V.where(torch.arange(V) != original, 0.0)
    d_V = torch.log(shown_replaced_V / shown_original_V)
    head_VV = None if sampling.objective == "electra" else z_V.expand(V, V)
    draws = draws_of(log_p_G_V.expand(V, V), torch.arange(V), sampling, head_VV)
    torch.testing.assert_close(log_likelihood(d_V, draws, M), log_p_V, rtol=0, atol=1e-12)
    torch.testing.assert_close(draws.log_p_G_X, log_p_G_V, rtol=0, atol=1e-12)


def test_a_discriminator_that_knows_nothing_leaves_the_generators_probability() -> None:
    """It says how often such a token is replaced if p_G is right."""
    log_p_G_X = torch.linspace(-30, -1e-6, 50, dtype=torch.float64)
    p_X = log_p_G_X.exp()
    d_X = torch.log(M * p_X * -torch.expm1(log_p_G_X)) - torch.log(p_X * (1 - M + M * p_X))
    found_X = log_likelihood(d_X, Draws(log_p_G_X, log_p_G_X, log_p_G_X), M)
    torch.testing.assert_close(found_X, log_p_G_X, rtol=1e-9, atol=1e-12)


def test_extreme_logits_and_certain_generators_give_finite_scores() -> None:
    scores_XV = torch.zeros(4, 6, dtype=torch.float64)
    scores_XV[:, 0] = 900.0
    for objective, forbid in (("electra", False), ("hp_dist", False), ("hp_loss", False), ("hp_loss", True)):
        sampling = Sampling(objective=objective, mask_share=M, forbid_original=forbid)
        draws = draws_of(scores_XV.log_softmax(-1), torch.tensor([0, 1, 0, 1]), sampling, scores_XV.flip(-1) / 9)
        found_X = log_likelihood(torch.tensor([-800.0, -800.0, 800.0, 800.0]).double(), draws, M)
        assert found_X.isfinite().all() and (found_X <= 0).all()
        assert found_X[0] > found_X[2] and found_X[1] > found_X[3]


def test_the_sum_of_the_others_is_exact_where_one_token_is_almost_certain() -> None:
    log_XV = torch.tensor([[-50.0, 0.0, -60.0], [-1.0, -1.0, -2.0]], dtype=torch.float64)
    expected_XV = torch.stack([log_XV[:, [v for v in range(3) if v != x]].logsumexp(-1) for x in range(3)], -1)
    torch.testing.assert_close(log_sum_of_others(log_XV), expected_XV, rtol=1e-14, atol=1e-21)


@torch.inference_mode()
def test_scores_of_a_stock_pair_equal_the_formula_on_hugging_faces_outputs(
    stock_model: Path, stock_generator: Path
) -> None:
    scorer = open_scorer(
        str(stock_model), ("discriminator", "generator", "likelihood"), str(stock_generator), mask_share=M
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
    scorer = open_scorer(str(stock_model), ("likelihood",), str(stock_generator), mask_share=M)
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


def untrained_run(folder: Path, shards: Path, preset: str, objective: str, *overrides: str) -> Path:
    """A run with a checkpoint of random weights, whose sampling head is far from p_S = p_G."""
    base = with_objective(PRESETS[preset], objective)
    description = describe(with_overrides(base, overrides), Shards(shards))
    write_run(folder, description, {})
    model = build_model(description)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:  # LayerNorms and biases start at 0 or 1
            torch.nn.init.normal_(parameter, 0.0 if name.endswith("bias") else 1.0, 0.5)
        else:
            parameter.data *= 4
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save(folder / CHECKPOINTS, 1, EngineState(1, {}, weights, {"exp_avg": weights}), {}, keep_last=1)
    return folder


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
    run, out = untrained_run(tmp_path / "run", shards_folder, preset, objective, *overrides), tmp_path / "out"
    export(ExportOptions(run=run, out=out))
    exported = open_scorer(str(out), ("likelihood", "generator"))
    found, of_run = exported.scores(ENGLISH), open_scorer(str(run), ("likelihood",)).scores(ENGLISH)
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
    without = open_scorer(str(out), ("likelihood",)).scores(ENGLISH)
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
    scorer = open_scorer(str(run), ())
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
    open_scorer(str(out), ("likelihood",))
    assert not capsys.readouterr().err
    (out / "generator" / SAMPLING_HEAD).unlink()
    open_scorer(str(out), ("likelihood",))
    assert re.search(r"trained with hp_loss, whose sampler \S+ does not hold: .* from p_G", capsys.readouterr().err)


def test_a_masked_language_models_likelihood_is_its_own(stock_generator: Path) -> None:
    scorer = open_scorer(str(stock_generator), ("generator", "likelihood"))
    for scores in scorer.scores(SENTENCES).values():
        np.testing.assert_array_equal(scores["generator"], scores["likelihood"])


@pytest.mark.parametrize("kind", ["Bert", "MPNet"])
@torch.inference_mode()
def test_a_bert_or_mpnet_gives_the_scores_of_hugging_faces(kind: str, stock_model: Path, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(stock_model)
    tokenizer.save_pretrained(tmp_path)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer), initializer_range=0.3, **sizes)
    theirs = getattr(transformers, f"{kind}ForMaskedLM")(config).eval()
    for parameter in theirs.parameters():  # biases away from 0
        torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    for sentence, scores in open_scorer(str(tmp_path), ("generator",)).scores(SENTENCES).items():
        ids_BL = tokenizer(sentence, return_tensors="pt").input_ids
        for place, score in enumerate(scores["generator"], 1):
            masked_BL = ids_BL.index_fill(1, torch.tensor([place]), tokenizer.mask_token_id)
            log_p_V = theirs(masked_BL).logits[0, place].double().log_softmax(-1)
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
    arguments = [sys.executable, "-c", MINICONS, stock_generator, json.dumps(SENTENCES)]
    others = os.environ | {"PYTHONPATH": str(tmp_path)}
    theirs = json.loads(subprocess.run(arguments, check=True, capture_output=True, env=others, cwd=tmp_path).stdout)
    scores = open_scorer(str(stock_generator), ("generator",)).scores(SENTENCES)
    for sentence, expected in zip(SENTENCES, theirs, strict=True):
        np.testing.assert_allclose(scores[sentence]["generator"], expected, rtol=0, atol=1e-5)


def test_the_share_of_masked_tokens_is_recorded_or_asked_for(stock_model: Path, stock_generator: Path) -> None:
    with pytest.raises(ConfigError, match=r"mask_share: .* does not record .*; add --mask_share"):
        open_scorer(str(stock_model), ("likelihood",), str(stock_generator))
    with pytest.raises(ConfigError, match=r"score: got likelihood, but .* has no generator inside; add --generator"):
        open_scorer(str(stock_model), ("likelihood",), mask_share=M)
    with pytest.raises(ConfigError, match=r"generator: .* is not a masked language model with the vocabulary of"):
        open_scorer(str(stock_model), ("likelihood",), str(stock_model), M)


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
        open_scorer(str(out), ("likelihood",))


def test_a_tokenizer_that_does_not_fit_is_refused(stock_model: Path, tmp_path: Path) -> None:
    """It puts no [CLS] and [SEP] around a text, has no [MASK], or more pieces than the model."""
    marks = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    for number, changed in enumerate(({}, {"mask_token": None}, {"extra_special_tokens": ["[ONE]"]})):
        folder = shutil.copytree(stock_model, tmp_path / str(number))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(stock_model, **marks | changed)
        if not changed:
            tokenizer.backend_tokenizer.post_processor = processors.Sequence([])
        tokenizer.save_pretrained(folder)
        said = r"model: (the tokenizer in \S+ does not fit;|tokenizer in \S+ has \d+ pieces,) expected"
        with pytest.raises(ConfigError, match=said):
            open_scorer(str(folder), ("discriminator",))


def test_special_tokens_in_a_sentence_are_text(stock_model: Path) -> None:
    scorer = open_scorer(str(stock_model), ("discriminator",))
    assert len(scorer.scores(["good [MASK] bad"])["good [MASK] bad"]["discriminator"]) > 3


def test_a_sentence_beyond_the_positions_is_refused(stock_model: Path) -> None:
    scorer = open_scorer(str(stock_model), ("discriminator",))
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
        with pytest.raises(ConfigError, match="no pre-training head"):
            open_scorer(str(folder), ("discriminator",))
