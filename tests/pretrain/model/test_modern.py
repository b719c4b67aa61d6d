"""Claims about the modern encoder: it is ModernBERT's, its windows and rotations are as written."""

import pytest
import torch
from transformers import ModernBertConfig, ModernBertModel

from pretrain.huggingface.forms import folded
from pretrain.model import ops
from pretrain.model.modern import ModernConfig, ModernEncoder, rotation

CONFIG = ModernConfig(
    vocab_size=300,
    embedding_size=64,
    hidden_size=64,
    num_hidden_layers=4,
    num_attention_heads=2,
    intermediate_size=96,
    global_theta=160_000.0,
)


@pytest.mark.parametrize("length", [64, 130, 300])
def test_hidden_states_are_modernberts(length: int) -> None:
    torch.manual_seed(0)
    ours = ModernEncoder(CONFIG).eval()
    theirs = ModernBertModel(
        ModernBertConfig(
            vocab_size=300,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=4,
            num_attention_heads=2,
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
        )
    ).eval()
    theirs.load_state_dict(
        {name.removeprefix("model."): weight for name, weight in folded(ours.state_dict(), ours.config).items()}
    )
    ids_BL = torch.randint(300, (3, length))
    visible_BL = torch.arange(length) < torch.tensor([length, length - 20, 5])[:, None]
    expected_BLH = theirs(ids_BL, visible_BL.long()).last_hidden_state
    found_BLH = ours(ids_BL, visible_BL, torch.zeros_like(ids_BL))
    assert (found_BLH - expected_BLH)[visible_BL].abs().max().item() < 1e-5


@pytest.mark.parametrize("radius", [0, 2, 9])
def test_a_token_sees_what_is_visible_within_its_window(radius: int) -> None:
    visible_BL = torch.tensor([[True] * 7 + [False] * 3])
    bias = ops.attention_bias(visible_BL, None, radius, 32, torch.float32)
    bias_BNLL = bias.added_BNLL.expand(1, 1, 10, 10)
    for query in range(10):
        for key in range(10):
            seen = key < 7 and abs(query - key) <= radius
            assert (bias_BNLL[0, 0, query, key].item() == 0) == seen


def test_products_of_rotated_vectors_depend_on_their_distance_alone() -> None:
    torch.manual_seed(0)
    query_D, key_D = torch.randn(2, 32, dtype=torch.float64)
    rotation_2LD = rotation(200, 32, 10_000.0, torch.device("cpu"))
    values_BLX = torch.cat((query_D, key_D, key_D)).expand(1, 200, 96)
    query_LD, key_LD, value_LD = (part[0, 0] for part in ops.rotary_heads(values_BLX, rotation_2LD, 1))
    assert torch.equal(value_LD, key_D.expand(200, 32))
    scores_LL = query_LD @ key_LD.T
    for distance in (0, 1, 50, 199):
        diagonal = scores_LL.diagonal(distance)
        assert (diagonal - diagonal[0]).abs().max().item() < 1e-4
    assert scores_LL[0].std().item() > 1


def test_layers_with_a_window_do_not_read_beyond_it() -> None:
    """With two layers of window 4 after a global one of none, token 0 reads at most 4 tokens away."""
    torch.manual_seed(0)
    config = ModernConfig(**{**vars(CONFIG), "window": 4, "num_hidden_layers": 3, "global_every": 4})
    encoder = ModernEncoder(config).eval()
    encoder.encoder.layer[0].get_parameter("attn.Wo.weight").data.zero_()  # the global layer adds nothing
    ids_BL = torch.randint(300, (1, 20))
    changed_BL = ids_BL.clone()
    changed_BL[0, 5:] = (changed_BL[0, 5:] + 1) % 300
    full_BL = torch.ones_like(ids_BL)
    before, after = (encoder(ids, full_BL, full_BL)[0] for ids in (ids_BL, changed_BL))
    assert torch.equal(before[0], after[0]) and not torch.equal(before[1], after[1])


def test_a_narrow_encoder_is_a_modernbert_once_its_projection_is_multiplied_in() -> None:
    torch.manual_seed(0)
    config = ModernConfig(**{**vars(CONFIG), "hidden_size": 32})
    ours = ModernEncoder(config).eval()
    wide = ModernEncoder(ModernConfig(**{**vars(config), "embedding_size": 32})).eval()
    weights = ours.state_dict()
    projection = weights.pop("embeddings_project.weight")
    weights["embeddings.word_embeddings.weight"] = weights["embeddings.word_embeddings.weight"] @ projection.T
    wide.load_state_dict(weights)
    ids_BL = torch.randint(300, (2, 40))
    full_BL = torch.ones_like(ids_BL)
    assert (ours(ids_BL, full_BL, full_BL) - wide(ids_BL, full_BL, full_BL)).abs().max().item() < 1e-5
