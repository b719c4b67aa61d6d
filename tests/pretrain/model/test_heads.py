"""Claims about the heads, against Hugging Face's and against the scores of the whole vocabulary."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import ElectraConfig
from transformers.models.electra.modeling_electra import (
    ElectraDiscriminatorPredictions,
    ElectraGeneratorPredictions,
)

from pretrain.model.encoder import TiedEmbedding
from pretrain.model.heads import DiscriminatorHead, HeadScores, VocabularyScores, VocabularyTransform
from pretrain.model.sizes import EncoderConfig

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


class Products(TorchDispatchMode):
    """Collects the sizes of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.mm.default:
            self.sizes += [*args[0].shape, *args[1].shape]
        return func(*args, **(kwargs or {}))


def test_in_fp16_all_products_with_the_vocabulary_have_sizes_of_a_multiple_of_8() -> None:
    scores, embeddings = VocabularyScores(CONFIG), TiedEmbedding(11, 8)
    projected_XE = torch.randn(16, 8, requires_grad=True)
    expected_XV = HeadScores(projected_XE, scores, embeddings).all()
    expected = torch.autograd.grad(expected_XV.square().sum(), (projected_XE, embeddings.weight))
    with Products() as products:
        scores_XV = HeadScores(projected_XE.half(), scores, embeddings.half()).all()
        scores_XV.square().sum().backward()
    assert len(products.sizes) == 12 and not [size for size in products.sizes if size % 8]
    found = (scores_XV, projected_XE.grad, embeddings.weight.grad)
    for half, exact in zip(found, (expected_XV, *expected), strict=True):
        assert half is not None and (half - exact).norm() < 3e-3 * exact.norm()


@pytest.mark.parametrize("bias", [True, False])
def test_scores_of_chosen_tokens_and_their_gradient_are_those_of_the_full_scores(bias: bool) -> None:
    scores, embeddings = VocabularyScores(CONFIG, bias), TiedEmbedding(11, 6)
    for parameter in scores.parameters():
        torch.nn.init.normal_(parameter)
    projected = torch.randn(2, 3, 6, requires_grad=True)
    ids = torch.tensor([[0, 10, 4], [3, 3, 7]])
    on_demand = HeadScores(projected, scores, embeddings)
    chosen = on_demand.of(ids)
    full = on_demand.all().gather(-1, ids[..., None]).squeeze(-1)
    assert torch.allclose(chosen, full, atol=1e-6)
    parameters = (projected, embeddings.weight, *scores.parameters())
    gradients = [torch.autograd.grad(part.sum(), parameters) for part in (chosen, full)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_scores_and_logits_are_fp32_in_a_bf16_model() -> None:
    embeddings = TiedEmbedding(11, 6).bfloat16()
    for bias in (True, False):
        scores = VocabularyScores(CONFIG, bias).bfloat16()
        assert HeadScores(torch.randn(2, 6).bfloat16(), scores, embeddings).all().dtype == torch.float32
    assert DiscriminatorHead(CONFIG).bfloat16()(torch.randn(2, 8).bfloat16()).dtype == torch.float32
