"""finetune/tokens/features.py: examples become BERT's token ids, batches hide their padding."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertTokenizerFast

from finetune.glue.files import load_task
from finetune.glue.tasks import TASKS
from finetune.tokens.examples import Example
from finetune.tokens.features import Features, collate, shares, tokenize_examples
from pretrain.job.processes import World

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer(shared_data: Path) -> BertTokenizerFast:
    return BertTokenizerFast(vocab=str(shared_data / "vocab" / "vocab.txt"))


def pieces(tokenizer: BertTokenizerFast, texts: tuple[str, ...], max_length: int = 128) -> str:
    features = tokenize_examples([Example(texts, 1.0)], tokenizer, max_length)
    return " ".join(tokenizer.convert_ids_to_tokens(features.input_ids[0]))


def test_one_text_and_a_pair_have_berts_form(tokenizer: BertTokenizerFast) -> None:
    assert pieces(tokenizer, ("The unaffable man",)) == "[CLS] the una ##ffa ##ble man [SEP]"
    assert pieces(tokenizer, ("A man", "Two men")) == "[CLS] a man [SEP] two men [SEP]"


def test_segments_and_targets_stand_beside_the_ids(tokenizer: BertTokenizerFast) -> None:
    features = tokenize_examples([Example(("A man", "Two men"), 0.5)], tokenizer, 128)
    assert features.token_type_ids == [[0, 0, 0, 0, 1, 1, 1]]
    assert features.targets == [0.5]


def test_a_long_pair_loses_the_end_of_its_longer_text(tokenizer: BertTokenizerFast) -> None:
    assert pieces(tokenizer, ("one two", "a b c d e f g h"), 10) == "[CLS] one two [SEP] a b c d e [SEP]"


def test_real_pairs_fit_the_length_and_keep_both_texts(tokenizer: BertTokenizerFast, shared_data: Path) -> None:
    examples = load_task(TASKS["RTE"], str(shared_data / "glue")).dev["dev"]
    features = tokenize_examples(examples, tokenizer, 64)
    assert max(map(len, features.input_ids)) == 64
    assert all(
        ids.count(tokenizer.sep_token_id) == 2 and ids[-1] == tokenizer.sep_token_id for ids in features.input_ids
    )
    assert all(1 in segments for segments in features.token_type_ids)


FEATURES = Features([[2, 9, 3], [2, 8, 7, 6, 3]], [[0, 0, 0], [0, 0, 0, 1, 1]], [1.0, 0.0])


def test_a_batch_is_padded_to_its_longest_and_the_padding_masked() -> None:
    batch = collate(FEATURES, np.array([1, 0]), pad_id=4, device=CPU)
    assert batch.input_ids_BL.tolist() == [[2, 8, 7, 6, 3], [2, 9, 3, 4, 4]]
    assert batch.attention_mask_BL.tolist() == [[True] * 5, [True, True, True, False, False]]
    assert batch.token_type_ids_BL.tolist() == [[0, 0, 0, 1, 1], [0] * 5]
    assert batch.target_B.tolist() == [0.0, 1.0]
    assert batch.weight_B.tolist() == [1.0, 1.0]


def test_an_empty_share_is_a_batch_that_counts_nowhere() -> None:
    batch = collate(FEATURES, [], pad_id=4, device=CPU)
    assert batch.input_ids_BL.shape == (1, 3)
    assert batch.weight_B.tolist() == [0.0]


def test_the_ranks_share_each_example_once_in_as_many_batches_of_like_lengths() -> None:
    features = Features([[0] * (1 + number * 7 % 5) for number in range(203)], [[]] * 203, [0.0] * 203)
    parts = [list(shares(features, World(rank, 3, rank, CPU), 8)) for rank in range(3)]
    assert len({len(part) for part in parts}) == 1
    assert sorted(np.concatenate([index for part in parts for index in part])) == list(range(203))
    spread = [len({len(features.input_ids[i]) for i in index}) for part in parts for index in part]
    assert max(spread) <= 2


def test_several_targets_an_example_make_a_matrix() -> None:
    batch = collate(FEATURES._replace(targets=[(1, 2, False), (0, 0, True)]), [0, 1], pad_id=4, device=CPU)
    assert batch.target_B.tolist() == [[1, 2, 0], [0, 0, 1]]
