"""Claims about the heads, against Hugging Face's and against the scores of the whole vocabulary."""

import pytest
import torch
from transformers import ElectraConfig
from transformers.models.electra.modeling_electra import (
    ElectraDiscriminatorPredictions,
    ElectraGeneratorPredictions,
)

from pretrain.model.encoder import EncoderConfig, TiedEmbedding
from pretrain.model.heads import DiscriminatorHead, VocabularyScores, VocabularyTransform

SIZES = {
    "vocab_size": 11,
    "embedding_size": 6,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
CONFIG = EncoderConfig(**SIZES)  # type: ignore[arg-type]
THEIRS = ElectraConfig(**SIZES)


def test_transform_and_discriminator_head_are_hugging_faces() -> None:
    hidden = torch.randn(2, 5, 8)
    pairs = (
        (VocabularyTransform(CONFIG), ElectraGeneratorPredictions(THEIRS)),
        (DiscriminatorHead(CONFIG), ElectraDiscriminatorPredictions(THEIRS)),
    )
    for ours, theirs in pairs:
        ours.load_state_dict(theirs.state_dict())
        assert torch.allclose(ours(hidden), theirs(hidden), atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_scores_of_chosen_tokens_and_their_gradient_are_those_of_the_full_scores(bias: bool) -> None:
    scores, embeddings = VocabularyScores(CONFIG, bias), TiedEmbedding(11, 6)
    for parameter in scores.parameters():
        torch.nn.init.normal_(parameter)
    projected = torch.randn(2, 3, 6, requires_grad=True)
    ids = torch.tensor([[0, 10, 4], [3, 3, 7]])
    chosen = scores(projected, embeddings, ids)
    full = scores(projected, embeddings).gather(-1, ids[..., None]).squeeze(-1)
    assert torch.allclose(chosen, full, atol=1e-6)
    parameters = (projected, embeddings.weight, *scores.parameters())
    for a, b in zip(
        torch.autograd.grad(chosen.sum(), parameters),
        torch.autograd.grad(full.sum(), parameters),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-6)


def test_scores_and_logits_are_fp32_in_a_bf16_model() -> None:
    embeddings = TiedEmbedding(11, 6).bfloat16()
    for bias in (True, False):
        scores = VocabularyScores(CONFIG, bias).bfloat16()
        assert scores(torch.randn(2, 6).bfloat16(), embeddings).dtype == torch.float32
    assert DiscriminatorHead(CONFIG).bfloat16()(torch.randn(2, 8).bfloat16()).dtype == torch.float32
