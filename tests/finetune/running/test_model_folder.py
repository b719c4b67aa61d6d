"""finetune/running/model_folder.py: which folders can be fine-tuned, and how a model is identified."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizers import normalizers

from data_prep.tokens import SPECIAL_TOKENS, SubwordTokenizer, from_vocabulary
from electra_sampler.foundation.config import ConfigError
from electra_sampler.foundation.files import folder_sha256
from pretrain.huggingface.folders import load_tokenizer
from pretrain.huggingface.stored import read_stored


@pytest.fixture
def copy(stock_model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(stock_model, tmp_path / "model")


def test_a_stock_hugging_face_folder_opens_with_its_tokenizer(stock_model: Path) -> None:
    model = read_stored(stock_model)
    assert (model.config.hidden_size, model.form.model_type) == (32, "electra")
    assert model.load_tokenizer()("good word1 .").input_ids == [2, 5, 8, 47, 3]


def test_the_fingerprint_depends_on_content_and_not_on_location(stock_model: Path, copy: Path) -> None:
    before = folder_sha256(copy)
    assert before == folder_sha256(stock_model)
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert folder_sha256(copy) != before


def test_a_folder_without_tokenizer_is_refused(copy: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        (copy / name).unlink()
    with pytest.raises(ConfigError, match=r"no tokenizer; save one there, expected one of tokenizer\.json, vocab\.txt"):
        load_tokenizer(copy)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tokenizer.json", "{", r"^model: no tokenizer can be read from .*model \(.*EOF"),
        ("vocab.txt", "one\ntwo\n", r"^model: .*model lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]; add"),
        ("tokenizer_config.json", '{"pad_token": "[NOTHING]"}', r"model lacks \[NOTHING\]; add"),
        ("tokenizer_config.json", '{"tokenizer_class": "BertJapaneseTokenizer"}', "tokenizer_class 'BertJapanese"),
        ("added_tokens.json", '{"covid-19": 51}', r"added_tokens\.json .* adds 'covid-19'"),
        ("tokenizer_config.json", "[]", r"no tokenizer can be read from .*model \("),
        ("tokenizer_config.json", "[" * 100_000, r"no tokenizer can be read from .*model \("),
    ],
)
def test_a_damaged_tokenizer_is_refused(name: str, content: str, problem: str, copy: Path) -> None:
    if name == "vocab.txt" or "tokenizer_class" in content:  # a tokenizer.json would define it
        (copy / "tokenizer.json").unlink()
    (copy / name).write_text(content)
    with pytest.raises(ConfigError, match=problem):
        load_tokenizer(copy)


def test_a_tokenizer_with_ids_beyond_the_vocabulary_is_refused(copy: Path) -> None:
    layout = json.loads((copy / "tokenizer.json").read_text())
    layout["model"]["vocab"]["word1"] = 10**6
    (copy / "tokenizer.json").write_text(json.dumps(layout))
    with pytest.raises(ConfigError, match=r"has 1000001 pieces, expected at most 51; export"):
        read_stored(copy).load_tokenizer()


def test_a_tokenizer_other_than_berts_gives_the_ids_of_the_shards(copy: Path) -> None:
    made = from_vocabulary([*SPECIAL_TOKENS, "word", "Ⅳ", "iv", "é", "e"])
    made.normalizer = normalizers.NFKC()
    tokenizer = SubwordTokenizer(made)
    tokenizer.save(copy)
    text = "word Ⅳ é iv e"
    expected = tokenizer.encode([text])[0].tolist()
    assert load_tokenizer(copy)(text).input_ids == [2, *expected, 3]


def test_a_model_with_its_own_code_opens_without_asking_to_run_it(
    pretrained_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *prompt: asked.append(prompt) or "n")
    assert "auto_map" in json.loads((pretrained_model / "config.json").read_text())
    read_stored(pretrained_model).load_tokenizer()
    assert not asked
