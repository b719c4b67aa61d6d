"""Claims about the encoder, against Hugging Face's ELECTRA and T5."""

import pytest
import torch
from transformers import ElectraConfig, ElectraModel
from transformers.models.t5.modeling_t5 import T5Attention

from pretrain.model import ops
from pretrain.model.encoder import ElectraEncoder, SelfAttention, relative_bucket
from pretrain.model.gdes import DisentangledEmbeddings
from pretrain.model.kernels import cpu_ops
from pretrain.model.modern import ModernConfig, ModernEncoder
from pretrain.model.sizes import EncoderConfig

SIZES = {
    "vocab_size": 99,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}


def example() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mask_BL = torch.arange(24) < torch.tensor([[24], [13]])
    segments_BL = (torch.arange(24) > 9).long().expand(2, 24)
    return torch.randint(1, 99, (2, 24), generator=generator), mask_BL, segments_BL


def encoder(**changes: object) -> ElectraEncoder:
    torch.manual_seed(0)
    return ElectraEncoder(EncoderConfig(**{**SIZES, **changes})).eval()  # type: ignore[arg-type]


def test_without_relative_positions_it_is_hugging_faces_electra_to_1e_5() -> None:
    torch.manual_seed(1)
    theirs = ElectraModel(ElectraConfig(**SIZES)).eval()
    ours = encoder(relative_position=False)
    ours.load_state_dict(theirs.state_dict())
    ids_BL, mask_BL, segments_BL = example()
    expected = theirs(ids_BL, attention_mask=mask_BL, token_type_ids=segments_BL).last_hidden_state
    assert (ours(ids_BL, mask_BL, segments_BL) - expected)[mask_BL].abs().max().item() < 1e-5


def test_buckets_are_t5s() -> None:
    distance = torch.arange(-600, 601)
    theirs = T5Attention._relative_position_bucket(distance, bidirectional=True, num_buckets=32, max_distance=128)
    assert torch.equal(relative_bucket(distance, 32, 128), theirs)


def test_relative_bias_is_added_to_the_scores_of_every_layer() -> None:
    """Recomputes one layer's attention from its own projections, with the bias added by hand."""
    model = encoder(num_hidden_layers=1)
    stack = model.encoder
    hidden_BLH = torch.randn(1, 9, 32)
    attention = stack.layer[0].get_submodule("attention.self")
    assert isinstance(attention, SelfAttention)
    query, key, value = (
        part(hidden_BLH).unflatten(2, (attention.num_heads, -1)).transpose(1, 2)
        for part in (attention.query, attention.key, attention.value)
    )
    distance_LL = torch.tensor([[key - query for key in range(9)] for query in range(9)])
    bias_NLL = stack.relative_attention_bias.weight[relative_bucket(distance_LL, 32, 128)].permute(2, 0, 1)
    scores = query @ key.transpose(-1, -2) / 8**0.5 + bias_NLL
    expected = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
    visible_BL = torch.ones(1, 9, dtype=torch.bool)
    packing, bias = stack.packing(visible_BL), stack.attention_bias(visible_BL, torch.float32)
    assert torch.allclose(attention(packing.pack(hidden_BLH), packing, bias), expected[0], atol=1e-5)


@pytest.mark.usefixtures("plain_ops")
@pytest.mark.parametrize("backbone", ["electra", "modern"])
@pytest.mark.parametrize("recompute", [False, True])
def test_computing_no_padding_changes_neither_hidden_states_nor_gradients(
    backbone: str, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_ops, "ROWS", 4)
    torch.manual_seed(0)
    modern = ModernConfig(**SIZES | {"embedding_size": 32}, window=6)
    model = ModernEncoder(modern).eval() if backbone == "modern" else encoder()
    model.encoder.recompute = recompute
    ids_BL, mask_BL, segments_BL = example()
    weight_BLH = torch.randn(2, 24, 32)

    def run() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model.zero_grad()
        hidden_BLH = model(ids_BL, mask_BL, segments_BL)
        (hidden_BLH * weight_BLH)[mask_BL].sum().backward()
        return hidden_BLH.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    ops.tokens_of = lambda visible_BL: None
    padded_BLH, gradients = run()
    ops.tokens_of = cpu_ops.tokens_of
    packed_BLH, others = run()
    computed = int(packed_BLH[~mask_BL].any(-1).sum()), int(padded_BLH[~mask_BL].any(-1).sum())
    assert computed[0] == -mask_BL.sum() % 4 < computed[1]
    assert (packed_BLH - padded_BLH)[mask_BL].abs().max() < 1e-6
    for name, gradient in gradients.items():
        assert torch.allclose(others[name], gradient, rtol=1e-5, atol=1e-6 * float(gradient.abs().max())), name


def test_disentangled_embeddings_add_their_tables_to_the_shared_ones() -> None:
    shared = encoder().embeddings
    disentangled = DisentangledEmbeddings(shared)
    ids_BL, _, segments_BL = example()
    start_BLE = disentangled(ids_BL, segments_BL)
    assert torch.equal(start_BLE, shared(ids_BL, segments_BL))
    weights = dict(encoder().embeddings.named_parameters())
    for weight in weights.values():
        torch.nn.init.normal_(weight)
    disentangled.start_from(weights)
    total = disentangled.plain()
    for name, weight in total.named_parameters():
        assert torch.allclose(weight, weights[name], atol=1e-6), name
    embedded_BLE = disentangled(ids_BL, segments_BL)
    assert torch.equal(embedded_BLE, total(ids_BL, segments_BL)) and not torch.equal(embedded_BLE, start_BLE)
    assert torch.equal(start_BLE, shared(ids_BL, segments_BL))  # the generator's are unchanged


def test_padding_has_no_effect() -> None:
    model = encoder()
    ids_BL, mask_BL, segments_BL = example()
    other_BL = torch.where(mask_BL, ids_BL, 7)
    a, b = model(ids_BL, mask_BL, segments_BL), model(other_BL, mask_BL, segments_BL)
    assert torch.equal(a[mask_BL], b[mask_BL])


def test_a_local_start_prefers_each_heads_neighbor_and_falls_with_distance() -> None:
    table = encoder(relative_bias_init="local").encoder.relative_attention_bias.weight
    for head, neighbor in ((0, -1), (1, 1), (2, -1)):
        bias = {
            d: table[relative_bucket(torch.tensor(d), 32, 128), head].item() for d in (-60, -9, -2, -1, 0, 1, 2, 9, 60)
        }
        assert max(bias, key=bias.__getitem__) == neighbor
        side = [bias[neighbor * d] for d in (1, 2, 9, 60)]
        assert side == sorted(side, reverse=True)


def test_the_t5_start_has_standard_deviation_one_over_root_width() -> None:
    table = encoder(hidden_size=256, relative_attention_num_buckets=2048).encoder.relative_attention_bias.weight
    assert abs(table.std().item() - 256**-0.5) < 0.05 * 256**-0.5


def test_activation_checkpointing_keeps_less_and_changes_no_bit_with_dropout() -> None:
    def gradients(recompute: bool) -> tuple[int, list[torch.Tensor]]:
        model = encoder(hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.3).train()
        model.encoder.recompute = recompute
        kept = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            kept += tensor.nbytes
            return tensor

        torch.manual_seed(5)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            hidden_BLH = model(*example())
        torch.manual_seed(6)  # recomputation must draw as before, not continue from here
        hidden_BLH.square().sum().backward()
        return kept, [hidden_BLH, *(p.grad for p in model.parameters() if p.grad is not None)]

    kept, plain = gradients(recompute=False)
    kept_less, recomputed = gradients(recompute=True)
    assert len(plain) == len(recomputed) > 50
    assert all(torch.equal(one, other) for one, other in zip(plain, recomputed, strict=True))
    assert kept_less < kept / 3
