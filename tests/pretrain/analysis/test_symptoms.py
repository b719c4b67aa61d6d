"""Claims about the quantities read from a run for its diagnosis."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import entropy

from data_prep.tokens import open_tokenizer
from pretrain.analysis.symptoms import RECENT, SkippedCheck, Symptoms
from pretrain.data.shards import Shards
from pretrain.presets import PRESETS
from pretrain.runs.folder import write_run
from pretrain.runs.log import RunLog
from tests.pretrain.runs.described import described


@pytest.fixture
def run(shards_folder: Path, tmp_path: Path) -> Symptoms:
    """A run whose loss falls to 1 at step 80 and rises afterward."""
    config, shards = PRESETS["tiny"], Shards(shards_folder)
    write_run(tmp_path, described(config, shards), {})
    log = RunLog(tmp_path, step=0, total_steps=200)
    for step in range(10, 121, 10):
        tokens = step * config.batch_size * 30
        log.write("train", step, {"mlm_loss": 1.0 + abs(step - 80) / 10, "tokens_so_far": tokens})
    log.close()
    return Symptoms(tmp_path)


def test_the_newest_records_are_averaged_and_their_steps_named(run: Symptoms) -> None:
    assert run.when() == "steps 71 to 120" and run.step == 120 and run.mean_length == 30
    assert run.mean("mlm_loss") == pytest.approx(np.mean([1, 2, 3, 4, 5]))


def test_a_limit_excludes_later_records(run: Symptoms) -> None:
    assert run.when(65) == "steps 11 to 60" and run.when(20) == "steps 1 to 20"
    assert run.mean("mlm_loss", 60) == pytest.approx(np.mean([7, 6, 5, 4, 3]))


def test_the_lowest_loss_is_averaged_over_as_many_records(run: Symptoms) -> None:
    assert RECENT == 5
    assert run.lowest_loss == (pytest.approx(np.mean([3, 2, 1, 2, 3])), 100)


def test_the_sample_of_the_text_is_counted_word_piece_by_word_piece(run: Symptoms, shards_folder: Path) -> None:
    shards, tokens = Shards(shards_folder), open_tokenizer(str(shards_folder / "tokenizer")).tokens
    index, _ = shards.mixture.shuffled(np.arange(min(2048, len(shards))), run.run.seed)
    ids, _, _ = shards.read(index, np.zeros_like(index))
    pieces = [tokens[number] for number in ids.flatten() if tokens[number] not in ("[PAD]", "[CLS]", "[SEP]")]
    words = sum(not piece.startswith("##") for piece in pieces)
    _, counts = np.unique(pieces, return_counts=True)
    assert run.text.pieces_per_word == pytest.approx(len(pieces) / words)
    assert run.text.unknown_share == pytest.approx(pieces.count("[UNK]") / len(pieces))
    assert run.text.unigram_entropy == pytest.approx(entropy(counts))
    assert run.text.steps == -(-len(index) // run.run.batch_size)


def test_shards_behind_a_url_are_named_and_not_opened(run: Symptoms, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://user:secret@127.0.0.1:9/shards"
    monkeypatch.setattr(run, "description", run.description.model_copy(update={"data": ("data/own", url)}))
    with pytest.raises(SkippedCheck, match=r"checks of the text: http://127\.0\.0\.1:9/shards is not opened"):
        _ = run.text


def test_a_tokenizer_that_is_not_the_datas_is_named(run: Symptoms) -> None:
    shorter = open_tokenizer(str(run.folder / "tokenizer")).tokens[:200]
    for path in (run.folder / "tokenizer").iterdir():
        path.unlink()
    (run.folder / "tokenizer" / "vocab.txt").write_text("\n".join(shorter) + "\n")
    with pytest.raises(SkippedCheck, match=rf"{run.folder}/tokenizer is not the tokenizer of .*; restore it"):
        _ = run.text
