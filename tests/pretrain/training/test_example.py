"""Claims about the decoded example."""

from collections.abc import Callable

import torch

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra
from pretrain.training.example import Example
from tests.pretrain.conftest import new_model

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##able", "cat", "dog"]


def example(**changes: torch.Tensor) -> Example:
    """[CLS] cat un ##able dog [SEP] [PAD]: cat became dog, dog was drawn again; the third slot is not valid."""
    return Example(
        input_ids_L=torch.tensor([2, 7, 5, 6, 8, 3, 0]),
        attention_mask_L=torch.tensor([True] * 6 + [False]),
        masked_positions_K=torch.tensor([1, 4, 0]),
        masked_valid_K=torch.tensor([True, True, False]),
        tokens_K=torch.tensor([8, 8, 7]),
        suspected_L=torch.zeros(7, dtype=torch.bool),
    )._replace(**changes)


def test_replacements_are_marked_and_word_pieces_joined() -> None:
    assert example().text(WORDS) == "[CLS] [cat->dog] unable [dog] [SEP]"


def test_what_the_discriminator_suspects_is_marked_wherever_it_stands() -> None:
    suspected = torch.tensor([False, True, False, True, False, False, True])
    assert example(suspected_L=suspected).text(WORDS) == "[CLS] [cat->dog]! unable! [dog] [SEP]"


def test_it_is_the_first_sequence_of_the_forward(batch: Batch, make_electra: Callable[..., Electra]) -> None:
    output = make_electra(name="hp_loss")(batch)
    taken = Example.of(batch, output)
    assert torch.equal(taken.tokens_K, output.draw.tokens_BK[0])
    assert torch.equal(taken.suspected_L, output.d_BL[0] > 0)
    assert torch.equal(taken.input_ids_L, batch.input_ids_BL[0])


def test_a_masked_language_model_shows_what_it_thinks_likeliest(batch: Batch) -> None:
    output = new_model("mlm")(batch)
    taken = Example.of(batch, output)
    assert torch.equal(taken.tokens_K, output.top_BK[0])
    assert "!" not in taken.text(WORDS)
