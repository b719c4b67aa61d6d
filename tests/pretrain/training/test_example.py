"""Claims about the decoded example."""

from collections.abc import Callable

import torch

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra, ElectraOutput
from pretrain.training.example import example
from tests.pretrain.conftest import VOCABULARY, new_model

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##able", "cat", "dog"]


def text(batch: Batch, output: ElectraOutput, suspected: list[int]) -> str:
    """[CLS] cat un ##able dog [SEP] [PAD]: cat became dog, dog was drawn again; the third slot is invalid."""
    ids_BL = torch.tensor([[2, 7, 5, 6, 8, 3, 0]])
    shown = batch._replace(
        input_ids_BL=ids_BL,
        attention_mask_BL=ids_BL > 0,
        masked_positions_BK=torch.tensor([[1, 4, 0]]),
        masked_valid_BK=torch.tensor([[True, True, False]]),
    )
    d_BL = torch.tensor([[1.0 if position in suspected else -1.0 for position in range(7)]])
    draw = output.draw._replace(tokens_BK=torch.tensor([[8, 8, 7]]))
    return example(shown, output._replace(draw=draw, d_BL=d_BL), WORDS)


def test_replacements_are_marked_and_word_pieces_joined(batch: Batch, make_electra: Callable[..., Electra]) -> None:
    assert text(batch, make_electra()(batch), suspected=[]) == "[CLS] [cat->dog] unable [dog] [SEP]"


def test_suspected_tokens_are_marked_anywhere(batch: Batch, make_electra: Callable[..., Electra]) -> None:
    assert text(batch, make_electra()(batch), suspected=[1, 3, 6]) == "[CLS] [cat->dog]! unable! [dog] [SEP]"


def test_a_masked_language_model_shows_its_most_likely_tokens(batch: Batch) -> None:
    output = new_model("mlm")(batch)
    words = [f"w{number}" for number in range(VOCABULARY)]
    shown = example(batch, output, words).split()
    assert len(shown) == batch.attention_mask_BL[0].sum() and "!" not in "".join(shown)
    for position, valid, token in zip(
        batch.masked_positions_BK[0].tolist(), batch.masked_valid_BK[0], output.top_BK[0].tolist(), strict=True
    ):
        assert not valid or f"w{token}]" in shown[position]
