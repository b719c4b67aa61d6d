"""finetune/squad/head.py: the head against its formulas, written out step by step."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from finetune.presets import HEAD_KINDS
from finetune.running.job import Features, collate
from finetune.squad.head import PairScorer, QuestionAnswerer, SpanLogits, span_losses
from tests.finetune.conftest import small_encoder

# [CLS] question [SEP] paragraph [SEP], padded to 9; the answers are "7 6", nothing, and "8".
FEATURES = Features(
    [[2, 9, 3, 5, 7, 6, 4, 8, 3], [2, 9, 3, 5, 3], [2, 9, 9, 3, 8, 5, 3]],
    [[0] * 3 + [1] * 6, [0] * 3 + [1] * 2, [0] * 4 + [1] * 3],
    [(4, 5, False), (0, 0, True), (4, 4, False)],
)
ALLOWED = {
    "electra": [{0, 3, 4, 5, 6, 7, 8}, {0, 3, 4}, {0, 4, 5, 6}],
    "xlnet": [{0, 3, 4, 5, 6, 7}, {0, 3}, {0, 4, 5}],  # the last [SEP] is excluded
}
BATCH = collate(FEATURES, [0, 1, 2], 0, torch.device("cpu"))


def model(kind: str, dropout: float = 0.0) -> QuestionAnswerer:
    return QuestionAnswerer(small_encoder(hidden_dropout_prob=dropout), HEAD_KINDS[kind])


def score_pair(scorer: PairScorer, first_H: Tensor, second_H: Tensor, kind: str) -> float:
    """One dense layer on the two concatenated states, and the layers after it."""
    matrix = torch.cat([scorer.first.weight, scorer.second.weight], dim=1)
    mixed = matrix @ torch.cat([first_H, second_H]) + scorer.second.bias
    mixed = F.gelu(mixed) if kind == "electra" else torch.tanh(mixed)
    if isinstance(scorer.LayerNorm, torch.nn.LayerNorm):
        mixed = (mixed - mixed.mean()) / mixed.std(correction=0)
    bias = 0.0 if scorer.logit.bias is None else float(scorer.logit.bias)
    return float(scorer.logit.weight[0] @ mixed) + bias


def states(answerer: QuestionAnswerer) -> Tensor:
    return answerer.electra(BATCH.input_ids_BL, BATCH.attention_mask_BL, BATCH.token_type_ids_BL)


@pytest.mark.parametrize("kind", ["electra", "xlnet"])
@torch.no_grad()
def test_training_scores_ends_given_the_true_start(kind: str) -> None:
    answerer = model(kind).train()
    logits, hidden_BLH = answerer(BATCH), states(answerer)
    for row, allowed in enumerate(ALLOWED[kind]):
        true_start = FEATURES.targets[row][0]
        for place in range(9):
            if place not in allowed:
                assert logits.start_BL[row, place] == logits.end_BL[row, place] == -math.inf
                continue
            start = answerer.head.start(hidden_BLH[row, place])
            end = score_pair(answerer.head.end, hidden_BLH[row, true_start], hidden_BLH[row, place], kind)
            assert float(logits.start_BL[row, place]) == pytest.approx(float(start), abs=1e-5)
            assert float(logits.end_BL[row, place]) == pytest.approx(end, abs=1e-4)


@pytest.mark.parametrize("kind", ["electra", "xlnet"])
@pytest.mark.parametrize("training", [True, False])
@torch.no_grad()
def test_answerability_sees_cls_and_the_starts_weighted_by_their_probability(kind: str, training: bool) -> None:
    answerer = model(kind).train(training)
    unanswerable_B, hidden_BLH = answerer(BATCH).unanswerable_B, states(answerer)
    for row, allowed in enumerate(ALLOWED[kind]):
        places = sorted(allowed)
        weights = answerer.head.start(hidden_BLH[row, places]).squeeze(1).softmax(0)
        expected = score_pair(answerer.head.unanswerable, hidden_BLH[row, 0], weights @ hidden_BLH[row, places], kind)
        assert float(unanswerable_B[row]) == pytest.approx(expected, abs=1e-4)


@torch.no_grad()
def test_a_beam_as_wide_as_the_text_finds_the_best_span() -> None:
    answerer = model("electra").eval()
    beams, hidden_BLH = answerer(BATCH), states(answerer)
    for row, allowed in enumerate(ALLOWED["electra"]):
        start_L = torch.full((9,), -math.inf)
        for place in allowed:
            start_L[place] = answerer.head.start(hidden_BLH[row, place])
        joint = {}
        for start in allowed:
            end_L = torch.full((9,), -math.inf)
            for place in allowed:
                end_L[place] = score_pair(answerer.head.end, hidden_BLH[row, start], hidden_BLH[row, place], "electra")
            for end in allowed:
                joint[start, end] = float(start_L.log_softmax(0)[start] + end_L.log_softmax(0)[end])
        found = {
            (int(beams.start_BK[row, i]), int(beams.end_BKK[row, i, j])): float(
                beams.start_log_p_BK[row, i] + beams.end_log_p_BKK[row, i, j]
            )
            for i, j in itertools.product(range(9), repeat=2)
        }
        assert {span: score for span, score in found.items() if score > -math.inf} == pytest.approx(joint, abs=1e-4)


@pytest.mark.parametrize(("kind", "beam"), [("electra", 20), ("xlnet", 5)])
def test_the_beam_is_limited_by_the_length(kind: str, beam: int) -> None:
    assert model(kind).eval()(BATCH).end_BKK.shape == (3, min(beam, 9), min(beam, 9))


def test_the_loss_is_the_mean_of_start_and_end_and_half_of_answerability() -> None:
    logits = SpanLogits(torch.tensor([[0.0, 1.0]]), torch.tensor([[2.0, 0.0]]), torch.tensor([0.7]))
    start = -math.log(math.e / (1 + math.e))
    end = -math.log(1 / (1 + math.e**2))
    null = -math.log(1 - 1 / (1 + math.exp(-0.7)))
    expected = (start + end) / 2 + 0.5 * null
    assert span_losses(logits, torch.tensor([[1.0, 1.0, 0.0]])).tolist() == pytest.approx([expected])


def test_every_parameter_of_the_head_gets_a_gradient_in_both_kinds() -> None:
    for kind in HEAD_KINDS:
        answerer = model(kind).train()
        span_losses(answerer(BATCH), BATCH.target_B).sum().backward()
        for name, parameter in answerer.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_only_xlnets_answerability_has_dropout_and_no_bias() -> None:
    electra, xlnet = model("electra", dropout=0.5), model("xlnet", dropout=0.5)
    assert (electra.head.unanswerable.dropout.p, xlnet.head.unanswerable.dropout.p) == (0, 0.5)
    assert (electra.head.unanswerable.logit.bias is None, xlnet.head.unanswerable.logit.bias is None) == (False, True)
    assert (electra.head.end.first.out_features, xlnet.head.end.first.out_features) == (512, 16)


def test_each_kind_is_initialized_as_in_its_source() -> None:
    for kind, expected in (("electra", math.sqrt(2 / (512 + 512))), ("xlnet", 0.02)):
        end = QuestionAnswerer(small_encoder(hidden_size=256), HEAD_KINDS[kind]).head.end
        matrix = torch.cat([end.first.weight, end.second.weight], dim=1)
        assert float(matrix.detach().std()) == pytest.approx(expected, rel=0.02)
        assert not end.second.bias.any()
