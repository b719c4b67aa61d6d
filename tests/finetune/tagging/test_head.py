"""finetune/tagging/job.py: Hugging Face's head, number for number."""

from pathlib import Path

import torch

from finetune.tagging.job import TokenClassifier
from finetune.tokens import Batch
from pretrain.huggingface.stored import read_stored


def test_the_logits_are_those_of_electra_for_token_classification(stock_model: Path) -> None:
    from transformers import ElectraForTokenClassification

    theirs = ElectraForTokenClassification.from_pretrained(stock_model, num_labels=5).eval()
    ours = TokenClassifier(read_stored(stock_model).encoder(), 5).eval()
    ours.head.load_state_dict(theirs.classifier.state_dict())
    ids_BL = torch.randint(5, 45, (3, 12), generator=torch.manual_seed(0))
    mask_BL = torch.arange(12) < torch.tensor([[12], [7], [3]])
    batch = Batch(ids_BL, mask_BL, torch.zeros_like(ids_BL), torch.zeros(3), torch.ones(3))
    with torch.inference_mode():
        expected_BLC = theirs(input_ids=ids_BL, attention_mask=mask_BL.long()).logits
        found_BLC = ours(batch)
    torch.testing.assert_close(found_BLC[mask_BL], expected_BLC[mask_BL], rtol=0, atol=1e-6)


def test_the_head_starts_as_hugging_faces(stock_model: Path) -> None:
    torch.manual_seed(0)
    head = TokenClassifier(read_stored(stock_model).encoder(), 2_000).head
    assert head.bias.abs().max() == 0
    assert abs(head.weight.std().item() - 0.02) < 5e-4
