"""Claims about an export as a stock MPNet: Hugging Face's class gives the model's own outputs without our code."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    MPNetForMaskedLM,
    MPNetForTokenClassification,
    MPNetModel,
)

from data_prep.tokens import SubwordTokenizer, open_tokenizer
from foundation.config import ConfigError
from pretrain.data.batches import Batch
from pretrain.huggingface.conversion import with_padding_at_1
from pretrain.huggingface.export import export_mpnet, require_mpnet
from pretrain.model.config import ElectraModelConfig
from tests.pretrain.conftest import SMALL_MODEL, VOCABULARY, new_model

SQUARE = SMALL_MODEL.model_copy(update={"embedding_size": 16})
EXCHANGED = torch.tensor([1, 0, *range(2, VOCABULARY)])
"""New ids: [PAD] and [UNK] exchange theirs."""


def square_model(objective: str, model: ElectraModelConfig = SQUARE) -> Any:
    torch.manual_seed(0)
    model = new_model(objective, model)
    for parameter in model.parameters():  # away from zero biases, which hide what is not copied
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


@pytest.fixture
def ids(batch: Batch) -> torch.Tensor:
    """The batch with [UNK], our id 1, in the middle of two sequences."""
    ids_BL = batch.input_ids_BL.clone()
    ids_BL[:2, 4] = 1
    return ids_BL


@pytest.mark.parametrize("objective", ["hp_loss", "hp_dist", "electra"])
def test_auto_model_gives_the_discriminators_states(
    objective: str, batch: Batch, ids: torch.Tensor, tokenizer: Path, tmp_path: Path
) -> None:
    model = square_model(objective)
    export_mpnet(model, tokenizer, "# card\n", tmp_path / "out")
    theirs, loading = AutoModel.from_pretrained(tmp_path / "out", trust_remote_code=False, output_loading_info=True)
    assert type(theirs) is MPNetModel
    assert not loading["unexpected_keys"] and all(key.startswith("pooler.") for key in loading["missing_keys"])
    visible = batch.attention_mask_BL
    with torch.no_grad():
        ours = model.discriminator(ids, visible, torch.zeros_like(ids))[visible]
        states = theirs.eval()(EXCHANGED[ids], visible.long()).last_hidden_state
    assert (states[visible] - ours).abs().max().item() < 1e-6


def test_auto_model_gives_a_masked_language_models_logits(
    batch: Batch, ids: torch.Tensor, tokenizer: Path, tmp_path: Path
) -> None:
    model = square_model("mlm")
    export_mpnet(model, tokenizer, "# card\n", tmp_path / "out")
    theirs, loading = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert type(theirs) is MPNetForMaskedLM
    assert not loading["unexpected_keys"] and not loading["missing_keys"]
    visible = batch.attention_mask_BL
    with torch.no_grad():
        projected = model.generator_predictions(model.electra(ids, visible, torch.zeros_like(ids)))
        ours = model.generator_lm_head(projected, model.electra.embeddings.word_embeddings)[visible]
        logits = theirs.eval()(EXCHANGED[ids], visible.long()).logits
    torch.testing.assert_close(logits[visible][:, EXCHANGED], ours, rtol=1e-6, atol=1e-6)


def test_every_distance_up_to_the_longest_sequence_has_its_own_bias(tokenizer: Path, tmp_path: Path) -> None:
    model = square_model("electra", SQUARE.model_copy(update={"max_positions": 300}))
    export_mpnet(model, tokenizer, "# card\n", tmp_path / "out")
    theirs = AutoModel.from_pretrained(tmp_path / "out").eval()
    ids = torch.randint(5, VOCABULARY, (2, 300), generator=torch.Generator().manual_seed(0))
    visible = torch.ones_like(ids)
    with torch.no_grad():
        ours = model.discriminator(ids, visible, torch.zeros_like(ids))
        assert (theirs(ids, visible).last_hidden_state - ours).abs().max().item() < 1e-6


def test_padding_on_the_left_changes_nothing(tokenizer: Path, tmp_path: Path) -> None:
    export_mpnet(square_model("electra"), tokenizer, "# card\n", tmp_path / "out")
    theirs = AutoModel.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        alone = theirs(torch.tensor([[2, 5, 6, 3]])).last_hidden_state
        padded = theirs(torch.tensor([[1, 1, 2, 5, 6, 3]]), torch.tensor([[0, 0, 1, 1, 1, 1]])).last_hidden_state
    assert (padded[:, 2:] - alone).abs().max().item() < 1e-6


def test_the_word_embeddings_are_bitwise_equal_but_for_the_two_rows_that_are_exchanged(
    tokenizer: Path, tmp_path: Path
) -> None:
    model = square_model("electra")
    export_mpnet(model, tokenizer, "# card\n", tmp_path / "out")
    exported = load_file(tmp_path / "out" / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert torch.equal(exported[EXCHANGED], model.discriminator.embeddings.word_embeddings.weight)


def test_the_tokenizer_gives_the_ids_but_for_the_two_that_are_exchanged(tokenizer: Path, tmp_path: Path) -> None:
    export_mpnet(square_model("electra"), tokenizer, "# card\n", tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=False)
    both = theirs(["Yes no", "no xyz yes [MASK]"], padding=True, return_tensors="pt")
    assert set(both) == {"input_ids", "attention_mask"}
    assert both["input_ids"].tolist() == [[2, 5, 6, 3, 1, 1], [2, 6, 0, 5, 4, 3]]
    assert theirs("yes", "no")["input_ids"] == [2, 5, 3, 6, 3]
    assert (theirs.pad_token_id, theirs.unk_token_id, theirs.model_max_length) == (1, 0, 16)


@pytest.mark.parametrize(
    "tokens",
    [
        ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"],  # as BERT's, in part
        ["[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"],  # nothing to exchange
        ["a", "##b", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[PAD]"],
    ],
)
def test_any_place_of_the_padding_is_exchanged_with_id_1(tokens: list[str], tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(tokens) + "\n")
    before = open_tokenizer(str(tmp_path / "vocab.txt"))
    with_padding_at_1(before).save(tmp_path / "tokenizer")
    after = SubwordTokenizer.load(tmp_path / "tokenizer")
    assert after.special.pad == 1
    assert after.tokens[before.special.pad] == tokens[1]
    text = ["ab a b aab", "[unused0] [PAD]"]
    assert [after.tokens[i] for i in after.encode(text)[0]] == [before.tokens[i] for i in before.encode(text)[0]]


def test_sentence_transformers_encodes_with_it(tokenizer: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = square_model("electra")
    export_mpnet(model, tokenizer, "# card\n", tmp_path / "out")
    encoder = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert encoder.max_seq_length == 16
    vectors = encoder.encode(["yes no yes", "no"], convert_to_tensor=True)
    for vector, ids in zip(vectors, ([[2, 5, 6, 5, 3]], [[2, 6, 3]]), strict=True):
        ids_BL = torch.tensor(ids)
        with torch.no_grad():
            mean = model.discriminator(ids_BL, torch.ones_like(ids_BL), torch.zeros_like(ids_BL))[0].mean(0)
        assert (vector - mean).abs().max().item() < 1e-6


def test_a_task_head_trains_on_it(tokenizer: Path, tmp_path: Path) -> None:
    export_mpnet(square_model("electra"), tokenizer, "# card\n", tmp_path / "out")
    tagger = MPNetForTokenClassification.from_pretrained(tmp_path / "out", num_labels=3)
    ids = torch.tensor([[2, 5, 0, 6, 3]])
    tagger(ids, labels=torch.tensor([[0, 1, 2, 1, 0]])).loss.backward()
    gradient = tagger.mpnet.embeddings.word_embeddings.weight.grad
    assert gradient is not None and gradient[0].any(), "[UNK] learns: it no longer has the id of padding"


def test_each_reason_that_mpnet_cannot_compute_a_model_is_named(tmp_path: Path) -> None:
    require_mpnet(tmp_path, SQUARE, one_segment=True)
    with pytest.raises(ConfigError) as refused:
        require_mpnet(tmp_path, SMALL_MODEL.model_copy(update={"relative_position": False}), one_segment=False)
    reasons = ("has no relative positions", "has 12 and 16", "built with --one_segment")
    for problem, reason in zip(refused.value.problems, reasons, strict=True):
        assert reason in problem
