"""finetune/glue/job.py: the heads, dropout and one dense layer on [CLS]."""

from typing import Literal

import pytest
import torch
from transformers import ElectraConfig
from transformers.models.electra.modeling_electra import ElectraClassificationHead

from finetune.glue.job import SequenceClassifier
from finetune.tokens import Features, collate
from pretrain.model.encoder import ElectraEncoder
from pretrain.model.sizes import EncoderConfig

FEATURES = Features([[2, 9, 3], [2, 8, 7, 6, 3]], [[0] * 3, [0] * 5], [1.0, 0.0])
CPU = torch.device("cpu")


def model(num_outputs: int, dropout: float = 0.1, head: Literal["electra", "hf"] = "electra") -> SequenceClassifier:
    torch.manual_seed(0)
    config = EncoderConfig(
        vocab_size=10,
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return SequenceClassifier(ElectraEncoder(config), num_outputs, head)


def test_the_output_is_one_dense_layer_on_the_first_hidden_state() -> None:
    classifier = model(3).eval()
    batch = collate(FEATURES, [0, 1], 0, CPU)
    hidden_BLH = classifier.electra(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
    expected_BC = hidden_BLH[:, 0] @ classifier.head.weight.T + classifier.head.bias
    torch.testing.assert_close(classifier(batch), expected_BC)


def test_padding_changes_no_output() -> None:
    classifier = model(2).eval()
    together_BC = classifier(collate(FEATURES, [0, 1], 0, CPU))
    alone_1C = classifier(collate(FEATURES, [0], 0, CPU))
    torch.testing.assert_close(together_BC[:1], alone_1C, rtol=0, atol=1e-6)


def test_hugging_faces_head_is_electras_classification_head() -> None:
    classifier = model(3, head="hf").eval()
    reference = ElectraClassificationHead(ElectraConfig(hidden_size=16, num_labels=3)).eval()
    reference.load_state_dict(classifier.head.state_dict())
    batch = collate(FEATURES, [0, 1], 0, CPU)
    hidden_BLH = classifier.electra(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
    torch.testing.assert_close(classifier(batch), reference(hidden_BLH))


@pytest.mark.parametrize("head", ["electra", "hf"])
def test_the_head_applies_dropout_only_in_training(head: Literal["electra", "hf"]) -> None:
    classifier = model(2, dropout=0.5, head=head)
    batch = collate(FEATURES, [0, 1], 0, CPU)
    assert not torch.equal(classifier.train()(batch), classifier(batch))
    assert torch.equal(classifier.eval()(batch), classifier(batch))
