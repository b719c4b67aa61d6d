"""Claims about `show.py`: each form of model is shown, what it lacks is named, and the page keeps and runs no text."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from tokenizers import ByteLevelBPETokenizer
from tokenizers.processors import TemplateProcessing
from transformers import ElectraConfig, ElectraForMaskedLM, PreTrainedTokenizerFast

from finetune.scoring import open_scorer
from finetune.show import Page
from pretrain.export import ExportOptions
from pretrain.export import main as export
from pretrain.huggingface.stored import SAMPLING_HEAD
from tests.browser import Browser
from tests.conftest import REPOSITORY, needs
from tests.finetune.conftest import SPECIAL, saved, untrained_run

SENTENCE = " The value  of a name.\n"
PAIR = ["replaced", "words"]
SAMPLER = ["p_S_V", "estimated_loss_V"]


@contextmanager
def shown(model: Path | str, generator: Path | None = None, mask_share: float | None = None) -> Iterator[Page]:
    """The page of a model, served as the command does."""
    with Page(open_scorer(str(model), (), str(generator) if generator else None, mask_share)) as page:
        Thread(target=page.serve_forever, daemon=True).start()
        yield page
        page.shutdown()


def ask(address: str, content: str | bytes | None = None) -> tuple[int, str]:
    """Status and text of the answer to a GET or, with content, a POST."""
    request = urllib.request.Request(address, content.encode() if isinstance(content, str) else content)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


HEAD = f"generator/{SAMPLING_HEAD}"
FORMS: dict[str, tuple[str, str, str | None, str, list[str], list[str], list[str]]] = {
    "a run": ("tiny", "hp_loss", None, "likelihood", PAIR, SAMPLER, []),
    "an export": ("tiny", "hp_dist", "", "likelihood", PAIR, SAMPLER[:1], ["no estimate of the loss"]),
    "without its sampling head": ("tiny", "hp_loss", HEAD, "likelihood", PAIR, [], ["no sampling head"]),
    "a modern export": ("modern_tiny", "hp_loss", "", "likelihood", PAIR, SAMPLER, []),
    "a lone discriminator": ("tiny", "electra", "generator", "discriminator", PAIR[:1], [], ["no generator"]),
    "a run of an MLM": ("tiny", "mlm", None, "generator", PAIR[1:], [], ["no discriminator", "no sampling head"]),
    "a lone MLM": ("tiny", "mlm", "", "generator", PAIR[1:], [], ["no discriminator", "no sampling head"]),
}
"""Each form of model: preset, objective, `None` or what is missing from its export; its best score, what a sentence and
a proposal have, and what it lacks."""


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_model_shows_what_it_has_and_names_what_it_lacks(
    form: str, shards_folder: Path, tmp_path: Path
) -> None:
    preset, objective, missing, of, has, columns, lacks = FORMS[form]
    model, out = untrained_run(tmp_path / "run", shards_folder, preset, objective), tmp_path / "out"
    if missing is not None:
        export(ExportOptions(run=model, out=out))
        model = out
    if missing:
        (out / missing).rename(tmp_path / "removed")
    with shown(model) as page:
        assert_shows(page, of, has, columns, lacks)


@pytest.mark.parametrize("mask_share", [0.1, None])
def test_a_stock_pair_is_shown_and_without_the_share_masked_its_likelihood_is_the_generators(
    mask_share: float | None, stock_model: Path, stock_generator: Path
) -> None:
    lacks = ["no sampling head"] if mask_share else ["no record of the share masked", "no sampling head"]
    with shown(stock_model, stock_generator, mask_share) as page:
        assert_shows(page, "likelihood" if mask_share else "generator", PAIR, [], lacks)


def assert_shows(page: Page, of: str, has: list[str], columns: list[str], lacks: list[str]) -> None:
    status, html = ask(page.address)
    assert ("P(replaced):" in html, "A click on a token" in html) == ("replaced" in has, "words" in has)
    named = [line[4:].partition(":")[0] for line in html.splitlines() if line.startswith("<li>")]
    assert status == 200 and [any(line.startswith(one) for one in lacks) for line in named] == [True] * len(lacks)
    answer = json.loads(ask(page.address, SENTENCE)[1])
    tokens = answer["tokens"]
    assert "".join(token["gap"] + token["text"] for token in tokens) + answer["rest"] == SENTENCE
    scores = page.scorer.scores([SENTENCE])[SENTENCE]
    assert (answer["of"], answer["total"]) == (of, scores[of].sum())  # type: ignore[index]
    assert sorted({*tokens[0], *answer} & {*PAIR}) == sorted(has)
    if "replaced" in has:
        replaced = [token["replaced"] for token in tokens]
        np.testing.assert_allclose(replaced, 1 - np.exp(scores["discriminator"]), atol=1e-12)
    if "words" not in has:
        assert ask(f"{page.address}0", SENTENCE)[0] == 400
        return
    assert [word for word, _ in answer["words"]] == SENTENCE.split()
    assert sum(bits for _, bits in answer["words"]) == pytest.approx(-answer["total"] / np.log(2))
    proposals: list[dict[str, Any]] = json.loads(ask(f"{page.address}1", SENTENCE)[1])["proposals"]
    (here,) = [one for one in proposals if one["here"]]
    assert len(proposals) in (10, 11) and np.log(here["p_G_V"]) == pytest.approx(scores["generator"][1], abs=1e-5)
    best = [one["p_G_V"] for one in proposals[:10]]
    assert best == sorted(best, reverse=True)
    assert [key for key in SAMPLER if here[key] is not None] == columns


BAD: dict[str | bytes, str] = {
    "": "sentence: got '', expected words; type some",
    " \u200b\n": "expected words",
    "word1 " * 10_000: "has 10002 tokens; expected at most 32",
    b"\xff": "sentence: cannot be read ('utf-8' codec can't decode byte 0xff",
}


def test_bad_input_is_answered_in_words(stock_model: Path) -> None:
    with shown(stock_model) as page:
        for text, said in BAD.items():
            status, answer = ask(page.address, text)
            assert status == 400 and said in answer and len(answer) < 300
        for text in ("😀 good", "שלום word1", "<script>alert(1)</script>", "good\0bad"):
            assert "".join(one["gap"] + one["text"] for one in json.loads(ask(page.address, text)[1])["tokens"]) == text
        assert ask(f"{page.address}7", "good bad") == (
            400,
            "position: got '7', expected a token of 2, and a generator",
        )


def test_a_sentence_is_at_most_512_tokens_even_where_a_model_has_more_positions(modern_model: Path) -> None:
    with shown(modern_model) as page:
        assert ask(page.address, "good " * 510)[0] == 200
        status, answer = ask(page.address, "good " * 511)
        assert status == 400 and answer.endswith("has 513 tokens; expected at most 512 on a page; shorten it")


def test_spaces_alone_are_no_sentence_even_where_they_are_tokens(tmp_path: Path) -> None:
    bytes_only = ByteLevelBPETokenizer()
    bytes_only.train_from_iterator([SENTENCE], special_tokens=[*SPECIAL])
    ends = [(token, bytes_only.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    bytes_only._tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bytes_only._tokenizer, **names)
    config = ElectraConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    with shown(saved(tmp_path / "bytes", tokenizer, lambda: ElectraForMaskedLM(config))) as page:
        assert len(page.scorer.ids_of(" ")) == 3
        assert ask(page.address, " ") == (400, "sentence: got ' ', expected words; type some")


def test_a_proposal_joins_the_token_before_it_only_if_it_continues_a_word(shards_folder: Path, tmp_path: Path) -> None:
    kinds = set()
    with shown(untrained_run(tmp_path / "run", shards_folder, "tiny", "mlm")) as page:
        tokens = json.loads(ask(page.address, "qqq qq")[1])["tokens"]
        for place, token in enumerate(tokens):
            before = "".join(one["gap"] + one["text"] for one in tokens[:place])
            after = "".join(one["gap"] + one["text"] for one in tokens[place + 1 :])
            for one in json.loads(ask(f"{page.address}{place}", "qqq qq")[1])["proposals"]:
                continues, word = one["token"].startswith("##"), one["token"].removeprefix("##")
                apart = "" if continues or not before else " "
                assert one["sentence"] == before + apart + word + after
                kinds.add((token["token"].startswith("##"), continues))
    assert len(kinds) == 4


def test_the_page_is_on_this_machine_only_behind_its_token_and_runs_no_script_but_its_own(stock_model: Path) -> None:
    with shown(stock_model) as page, shown(stock_model) as other:
        assert page.server_address[0] == "127.0.0.1"
        root = page.address.removesuffix(page.place)
        for path in ("", "/", "/favicon.ico", page.place[:-1], other.place, page.place[:-2] + "x/", "/\xe9"):
            for content in (None, "good"):
                status, answer = ask(root + urllib.parse.quote(path), content)
                assert status == 404 and answer.startswith("there is no such page")
        assert [ask(page.address + below)[0] for below in ("", "0", "?good")] == [200, 404, 404]
        with urllib.request.urlopen(page.address) as answer:
            policy, html = answer.headers["Content-Security-Policy"], answer.read().decode()
        assert policy.startswith(f"default-src 'none'; script-src 'nonce-{page.nonce}'; ")
        assert html.count("<script") == html.count(f'<script nonce="{page.nonce}">') == 1
        assert "http" not in html.replace(page.scorer.name, "")


@pytest.mark.parametrize(("text", "seconds"), [("a secret", 60), ("a " * 510, 0.5)], ids=["idle", "while it computes"])
def test_the_command_prints_an_address_logs_no_request_and_ends_with_ctrl_c(
    text: str, seconds: float, shards_folder: Path, tmp_path: Path
) -> None:
    run, empty = untrained_run(tmp_path / "run", shards_folder, "tiny", "mlm"), tmp_path / "empty"
    empty.mkdir()
    process = subprocess.Popen(
        [sys.executable, REPOSITORY / "finetune/show.py", run],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=empty,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    assert process.stdout is not None
    word, address, *rest = (process.stdout.readline() + process.stdout.readline()).split()
    assert [word, *rest] == ["page", "Ctrl-C", "closes", "it"]
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask, address, text)
        wait([answer], timeout=seconds)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        assert (answer.exception() is None) == (text == "a secret")
    assert (process.returncode, output, [*empty.iterdir()]) == (0, "", [])


@pytest.mark.long
def test_in_a_real_browser_tokens_are_colored_a_click_proposes_and_two_sentences_are_compared(
    shards_folder: Path, stock_model: Path, tmp_path: Path
) -> None:
    needs("chromium")
    first, second = "document.querySelectorAll('section')[0]", "document.querySelectorAll('section')[1]"
    run = untrained_run(tmp_path / "run", shards_folder, "tiny", "hp_loss")
    with shown(run) as page, shown(stock_model) as alone, Browser(tmp_path / "profile") as browser:
        browser.open(page.address)
        for side, text in (
            (first, "The value of a name."),
            (second, "שלום 😀 <img src=x onerror=document.title='run'>"),
        ):
            browser.click(f"{side}.querySelector('textarea')")
            browser.type(text)
            browser.click(f"{side}.querySelector('form button')")
            browser.wait_for(f"{side}.querySelector('.total').textContent")
            assert browser.run(f"{side}.querySelector('.tokens').textContent") == text
            assert browser.run(f"{side}.querySelector('.tokens span').style.background").startswith("rgba(")
        directions = (
            f"[{first}, {second}].map(side => getComputedStyle(side.querySelector('.tokens')).direction).join()"
        )
        assert browser.run(directions) == "ltr,rtl"
        assert "nats higher" in browser.run("document.getElementById('compared').textContent")
        browser.click(f"{first}.querySelectorAll('.tokens span')[1]")
        assert browser.wait_for(f"{first}.querySelectorAll('.proposals tr').length") in (11, 12)
        heads = f"[...{first}.querySelectorAll('.proposals th')].map(e => e.textContent).join()"
        assert browser.run(heads) == "proposal,p_G,p_S,estimated loss"
        chosen = browser.run(f"{first}.querySelector('.proposals button').textContent")
        browser.click(f"{first}.querySelector('.proposals button')")
        browser.wait_for(f"{first}.querySelector('.total').textContent")
        changed = f"The {chosen} of a name.".replace(" ##", "")
        assert browser.run(f"{first}.querySelector('textarea').value") == changed
        browser.click(f"{second}.querySelector('textarea')")
        browser.run(f"{second}.querySelector('textarea').value = 'word '.repeat(10000)")
        browser.click(f"{second}.querySelector('form button')")
        assert "expected at most" in browser.wait_for(f"{second}.querySelector('.error').textContent")
        assert browser.run("document.title") == str(run)
        assert not browser.run("document.querySelectorAll('img').length")
        browser.open(alone.address)
        browser.click(f"{first}.querySelector('textarea')")
        browser.type("good bad")
        browser.click(f"{first}.querySelector('form button')")
        browser.wait_for(f"{first}.querySelector('.total').textContent")
        browser.click(f"{first}.querySelector('.tokens span')")
        assert not browser.run(f"{first}.querySelectorAll('.tokens [role=button], .tokens [aria-pressed]').length")
