"""Claims about the samplers without a model: their frequencies, and that they have no generator."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from electra_sampler.foundation.config import ConfigError
from pretrain.data.batches import Batch, make_batch
from pretrain.data.shards import Shards
from pretrain.method.registry import objective_class
from pretrain.planning.estimates import flops_per_token
from pretrain.presets import PRESETS
from pretrain.runs.models import build_model
from samplers import floors
from tests.pretrain.runs.described import described
from tests.samplers.conftest import model_of

NAMES = ("uniform", "unigram")


@pytest.fixture(scope="module")
def batch(shards: Shards) -> Batch:
    return make_batch(shards, np.arange(500), np.zeros(500, dtype=np.int64), seed=0)


@pytest.fixture(scope="module")
def small_batch(shards: Shards) -> Batch:
    return make_batch(shards, np.arange(150), np.zeros(150, dtype=np.int64), seed=0)


def expected(shards: Shards, name: str) -> np.ndarray:
    """The distribution, from one sequence at a time."""
    counts = np.zeros(shards.manifest.vocab_size)
    for index in range(len(shards)):
        ids, _, (length,) = shards.read(np.array([index]), np.array([0]))
        np.add.at(counts, ids[0, :length], 1)
    weights = np.ones_like(counts) if name == "uniform" else counts
    special = shards.manifest.special_tokens
    weights[[special.pad, special.unk, special.cls, special.sep, special.mask]] = 0
    return weights / weights.sum()


@pytest.mark.parametrize("name", NAMES)
def test_the_tokens_have_the_frequencies_of_the_formula_and_are_never_special(
    name: str, shards: Shards, batch: Batch
) -> None:
    model, p = model_of(shards, name), expected(shards, name)
    np.testing.assert_allclose(model.p_V, p, rtol=1e-6)
    (drawn, _), valid = model.draw(batch, model.predict(batch)), batch.masked_valid_BK
    counts = np.bincount(drawn.tokens_BK[valid], minlength=len(p))
    assert not counts[p == 0].any()
    often = p * counts.sum() > 5
    observed, wanted = (np.append(part[often], part[~often].sum()) for part in (counts, p * counts.sum()))
    assert chisquare(observed[wanted > 0], wanted[wanted > 0]).pvalue > 1e-4
    np.testing.assert_allclose(drawn.log_q_BK.exp(), p[drawn.tokens_BK], rtol=1e-5)


def test_the_text_is_counted_up_to_a_limit_and_the_same_for_every_seed(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "MOST_TOKENS", 40 * shards.manifest.seq_length)
    first, again = (model_of(shards, "unigram").p_V for _ in range(2))
    assert torch.equal(first, again)
    index, _ = shards.mixture.shuffled(np.arange(40), seed=0)
    ids, _, _ = shards.read(index, np.zeros_like(index))
    found = set(ids[ids > shards.manifest.special_tokens.mask].tolist())
    assert set(first.nonzero().flatten().tolist()) == found
    assert len(found) < np.count_nonzero(expected(shards, "unigram"))


@pytest.mark.parametrize("weight", [0.0, np.nan, np.inf, -1.0])
def test_weights_by_which_nothing_can_be_drawn_are_refused_such_as_those_of_unknown_tokens_alone(
    weight: float, shards: Shards, small_batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, weights = model_of(shards, "unigram"), np.full(shards.manifest.vocab_size, weight)
    weights[shards.manifest.special_tokens.unk] = 1000.0
    monkeypatch.setattr(model, "weigh", lambda text: weights)
    with pytest.raises(ConfigError, match=r"^objective: unigram cannot draw by its weights .*, as \[UNK\] is;"):
        model(small_batch)


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_the_discriminators_and_no_generator_exists_or_is_counted(
    name: str, shards: Shards, small_batch: Batch
) -> None:
    model, run = model_of(shards, name), PRESETS["tiny"]
    plain = build_model(described(run, shards))
    names = {name for name, _ in plain.named_parameters() if name.startswith("discriminator")}
    embeddings = {name for name, _ in plain.named_parameters() if ".embeddings." in name}
    own = {name for name, _ in model.named_parameters()}
    assert own == names | {name.replace("generator.", "discriminator.", 1) for name in embeddings}
    output = model(small_batch, entropies=True)
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    visible = small_batch.attention_mask_BL
    assert output.loss.item() == pytest.approx(
        50 * output.detected.discriminator_loss_BL[visible].mean().item(), rel=1e-5
    )
    assert not output.generator_loss_BK.any() and not output.detected.sampler_loss_BK.any()
    p = expected(shards, name)
    assert output.detected.draw.entropy_q_BK.numpy() == pytest.approx(-(p[p > 0] * np.log(p[p > 0])).sum(), rel=1e-5)
    vocabulary, length = shards.manifest.vocab_size, shards.manifest.seq_length
    hidden, inner = run.model.hidden_size, run.model.intermediate_size
    per_layer = 2 * (4 * hidden * hidden + 2 * hidden * inner + 2 * length * hidden)
    assert flops_per_token(run.model, model.objective, vocabulary, length) == 3 * run.model.layers * per_layer


@pytest.mark.parametrize("name", NAMES)
def test_originals_are_never_drawn_if_forbidden(name: str, shards: Shards, small_batch: Batch) -> None:
    valid, free = small_batch.masked_valid_BK, model_of(shards, name)(small_batch)
    drawn = model_of(shards, name, forbid_original=True)(small_batch).detected.draw.tokens_BK
    original = small_batch.input_ids_BL.gather(1, small_batch.masked_positions_BK)
    assert (free.detected.draw.tokens_BK == original)[valid].any() and not (drawn == original)[valid].any()


def test_a_model_is_built_and_loaded_without_its_shards(shards: Shards) -> None:
    config = objective_class("unigram").Config.from_values({})
    run = PRESETS["tiny"].model_copy(update={"objective": config})
    description = described(run, shards).model_copy(update={"data": ("nowhere",)})
    assert build_model(description).exported(".").keys() == {"electra", "discriminator_predictions"}
