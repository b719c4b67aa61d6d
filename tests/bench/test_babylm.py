"""Claims about `babylm.py`: completions get our likelihood, and BabyLM's own command ranks and reports them.

The command's own test needs a checkout of github.com/babylm-org/babylm-eval, whose folder `strict`
ELECTRA_SAMPLER_BABYLM names.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.babylm import BabylmOptions, main, totals
from electra_sampler.foundation.config import ConfigError
from finetune.scoring import open_scorer
from tests.conftest import REPOSITORY
from tests.finetune.conftest import untrained_run

CHECKOUT = os.environ.get("ELECTRA_SAMPLER_BABYLM", "")
PAIRS = [("The value of a name.", "The value of the of."), ("the of name", "The name of it"), ("a", "the a")]


def test_a_completion_has_the_likelihood_of_the_tokens_that_reach_into_it(shards_folder: Path, tmp_path: Path) -> None:
    scorer = open_scorer(str(untrained_run(tmp_path / "run", shards_folder, "tiny", "hp_loss")), ["likelihood"])
    sentences = ["The value of a , a", "The value of a ."]
    items = [{"sentences": sentences, "completions": given} for given in (sentences, [", a", "."])]
    whole, ends = totals(scorer, items)
    scores = [scorer.scores(sentences)[sentence]["likelihood"] for sentence in sentences]
    assert whole == pytest.approx([score.sum() for score in scores], rel=1e-12)
    assert ends == pytest.approx([scores[0][-2:].sum(), scores[1][-1]], rel=1e-12)


@pytest.mark.skipif(not CHECKOUT, reason="babylm-eval not found; set ELECTRA_SAMPLER_BABYLM to its folder strict")
def test_the_official_command_chooses_the_sentence_of_higher_likelihood(shards_folder: Path, tmp_path: Path) -> None:
    run, data = untrained_run(tmp_path / "run", shards_folder, "tiny", "hp_loss"), tmp_path / "data"
    data.mkdir()
    (data / "pairs.jsonl").write_text(
        "".join(json.dumps({"sentence_good": good, "sentence_bad": bad}) + "\n" for good, bad in PAIRS)
    )
    command = [sys.executable, str(REPOSITORY / "bench" / "babylm.py"), CHECKOUT, str(run), "--data", str(data)]
    subprocess.run(command, cwd=tmp_path, check=True)
    (found,) = tmp_path.glob("results/**/predictions.json")
    scores = open_scorer(str(run), ["likelihood"]).scores({sentence for pair in PAIRS for sentence in pair})
    chosen = [max(pair, key=lambda sentence: scores[sentence]["likelihood"].sum()) for pair in PAIRS]
    assert [one["pred"] for one in json.loads(found.read_text())["pairs"]["predictions"]] == chosen
    right = sum(one == good for one, (good, _) in zip(chosen, PAIRS, strict=True))
    report = (found.parent / "best_temperature_report.txt").read_text()
    assert report.rstrip().endswith(f"### AVERAGE ACCURACY\n{100 * right / len(PAIRS):.2f}")


def test_a_folder_without_the_pipeline_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkout: .* name the folder strict of babylm-eval"):
        main(BabylmOptions(checkout=tmp_path, model="runs/own", data=tmp_path))
