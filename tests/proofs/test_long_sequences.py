"""A modern encoder trained on short sequences uses tokens farther away after a short second phase on longer ones."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from pretrain.model.modern import ModernConfig, ModernEncoder

MASK, KEYS, NOISE = 0, range(1, 6), range(6, 24)
CONFIG = ModernConfig(
    vocab_size=24,
    embedding_size=32,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=48,
    hidden_dropout_prob=0.0,
    initializer_range=0.1,
    window=4,
)
SHORT, LONG = 24, 96


def sequences(length: int, farthest: int, count: int = 32) -> tuple[Tensor, Tensor, Tensor]:
    """Noise with one of five keys, and a mask at the end that stands for the key; ids, keys and their distances."""
    ids_BL = torch.randint(NOISE.start, NOISE.stop, (count, length))
    key_B = torch.randint(KEYS.start, KEYS.stop, (count,))
    distance_B = torch.randint(1, farthest, (count,))
    ids_BL[torch.arange(count), length - 1 - distance_B] = key_B
    ids_BL[:, -1] = MASK
    return ids_BL, key_B, distance_B


def answers(model: ModernEncoder, ids_BL: Tensor, visible_BL: Tensor | None = None) -> Tensor:
    visible_BL = torch.ones_like(ids_BL, dtype=torch.bool) if visible_BL is None else visible_BL
    hidden_BH = model(ids_BL, visible_BL, torch.zeros_like(ids_BL))[:, -1]
    return hidden_BH @ model.embeddings.word_embeddings.weight.T


def train(model: ModernEncoder, length: int, steps: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        ids_BL, key_B, _ = sequences(length, length - 1)
        nn.functional.cross_entropy(answers(model, ids_BL), key_B).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_tokens_beyond_the_first_phases_length_are_found_after_the_second() -> None:
    torch.manual_seed(0)
    short = ModernEncoder(CONFIG)
    train(short, SHORT, steps=100)
    long = ModernEncoder(replace(CONFIG, global_theta=160_000.0))
    long.load_state_dict(short.state_dict())
    train(long, LONG, steps=20)
    ids_BL, key_B, distance_B = sequences(LONG, LONG - 1, count=256)
    far_B = distance_B > SHORT
    with torch.no_grad():
        right_B = answers(long, ids_BL).argmax(1) == key_B
        near_BL = torch.arange(LONG).expand_as(ids_BL) >= LONG - SHORT
        blind_B = answers(long, ids_BL, near_BL).argmax(1) == key_B
    assert right_B[far_B].float().mean() > 0.95
    assert blind_B[far_B].float().mean() < 0.4, "one in five by chance: the answers come from far away"
