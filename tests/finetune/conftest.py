"""Small models, tokenizers and tasks in the official layouts, made on the fly."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from data_prep.train_vocab import VocabularyOptions
from data_prep.train_vocab import main as train_vocab
from finetune.config import FinetuneOptions, GlueConfig, GlueOptions, SquadConfig, SquadOptions, TaggingOptions
from finetune.glue import job as glue
from finetune.presets import settings_for
from finetune.running import run_list
from finetune.running.records import RunIdentity, RunRecord, read_records
from finetune.squad import job as squad
from finetune.tagging import job as tagging
from pretrain.config import with_overrides
from pretrain.data.shards import Shards
from pretrain.engine.checkpoint import EngineState, save
from pretrain.export import ExportOptions
from pretrain.export import main as export
from pretrain.huggingface.stored import Sampling
from pretrain.job.processes import World, start_processes
from pretrain.model.encoder import ElectraEncoder
from pretrain.model.sizes import EncoderConfig
from pretrain.presets import PRESETS, with_objective
from pretrain.runs.folder import CHECKPOINTS, write_run
from pretrain.runs.models import build_model
from tests.conftest import REPOSITORY
from tests.pretrain.runs.described import described
from tests.warm import run

FP32 = REPOSITORY / "ds_configs" / "zero0_fp32.json"
WORDS = [f"word{i}" for i in range(40)]
SIGNAL = ("good", "bad")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="session")
def world() -> World:
    return start_processes()


@pytest.fixture(scope="session")
def stock_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialized stock Hugging Face discriminator of two layers, with its tokenizer."""
    from transformers import BertTokenizerFast, ElectraConfig, ElectraForPreTraining

    folder = tmp_path_factory.mktemp("stock")
    vocabulary = [*SPECIAL, *SIGNAL, *WORDS, ".", ",", '"', "?"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocab.txt"))
    config = ElectraConfig(
        vocab_size=len(vocabulary),
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    return saved(folder, tokenizer, lambda: ElectraForPreTraining(config))


def saved(folder: Path, tokenizer: Any, build: Callable[[], Any], seed: int = 0) -> Path:
    """Saves a tokenizer and the randomly initialized model that `build` returns."""
    tokenizer.save_pretrained(folder)
    torch.manual_seed(seed)
    build().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def stock_generator(stock_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generator of the size and with the tokenizer of `stock_model`."""
    from transformers import AutoTokenizer, ElectraConfig, ElectraForMaskedLM

    config = ElectraConfig.from_pretrained(stock_model)
    tokenizer = AutoTokenizer.from_pretrained(stock_model)
    return saved(tmp_path_factory.mktemp("generator"), tokenizer, lambda: ElectraForMaskedLM(config), seed=1)


@pytest.fixture(scope="session")
def modern_model(stock_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialized ModernBERT with one label per token, as which a modern encoder is exported."""
    from transformers import AutoTokenizer, ModernBertConfig, ModernBertForTokenClassification

    tokenizer = AutoTokenizer.from_pretrained(stock_model, model_input_names=["input_ids", "attention_mask"])
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 2}
    config = ModernBertConfig(vocab_size=len(tokenizer), num_labels=1, local_attention=8, pad_token_id=0, **sizes)
    return saved(tmp_path_factory.mktemp("modern"), tokenizer, lambda: ModernBertForTokenClassification(config))


@pytest.fixture(scope="session")
def bert_model(stock_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A randomly initialized BERT with its masked language model's head."""
    from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

    tokenizer = AutoTokenizer.from_pretrained(stock_model)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(tokenizer), initializer_range=0.2, **sizes)
    return saved(tmp_path_factory.mktemp("bert"), tokenizer, lambda: BertForMaskedLM(config))


@pytest.fixture(scope="session")
def pretrained_model(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of this project with relative positions: exported after 20 steps of HP_Loss on real text."""
    folder = tmp_path_factory.mktemp("pretrained")
    text = (folder / "text.txt",)
    text[0].write_bytes((shared_data / "wiki" / "wikitext2-test.txt").read_bytes()[:250_000])
    train_vocab(VocabularyOptions.from_values({"input": text, "output": folder / "vocab", "size": 2_000}))
    build = {"input": text, "output": folder / "shards", "vocab": str(folder / "vocab"), "seq_length": 64, "workers": 1}
    build_shards(BuildOptions.from_values(build))
    sizes = ("batch_size=16", "optim.steps=20", "optim.warmup_steps=2", "model.hidden_size=64", "model.heads=2")
    saves = ("checkpoint_every=10", "keep_checkpoints=2")
    given = ("--preset", "tiny", "--data", folder / "shards", "--output", folder / "run", "--set", *sizes, *saves)
    done = run("pretrain/run.py", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    export(ExportOptions(run=folder / "run", out=folder / "model"))
    return folder / "model"


@pytest.fixture(scope="session")
def real_tokenizer(shared_data: Path) -> Any:
    """BERT's."""
    from transformers import BertTokenizerFast

    return BertTokenizerFast(vocab=str(shared_data / "vocab" / "vocab.txt"))


def tagged_text(count: int, seed: int) -> str:
    """Sentences in CoNLL columns, one location in each: the two signal words."""
    random = np.random.default_rng(seed)
    sentences = []
    for _ in range(count):
        rows = [f"{word}\tO\n" for word in random.choice(WORDS, size=int(random.integers(2, 7)))]
        place = int(random.integers(len(rows)))
        rows[place:place] = [f"{SIGNAL[0]}\tB-loc\n", f"{SIGNAL[1]}\tI-loc\n"]
        sentences.append("".join(rows))
    return "\n".join(sentences)


@pytest.fixture(scope="session")
def tagging_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a learnable NER task in CoNLL columns: 203 training, 41 dev and 23 test sentences."""
    folder = tmp_path_factory.mktemp("tagging")
    for seed, (name, count) in enumerate((("train", 203), ("dev", 41), ("test", 23))):
        (folder / f"{name}.conll").write_text(tagged_text(count, seed))
    return folder


def cola_rows(count: int, seed: int) -> str:
    """Rows in CoLA's format; the label says whether the sentence contains "good" or "bad"."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        label = int(random.integers(2))
        words = list(random.choice(WORDS, size=int(random.integers(3, 9))))
        words.insert(int(random.integers(len(words))), SIGNAL[1 - label])
        rows.append(f"made\t{label}\t{'' if label else '*'}\t{' '.join(words)} .\n")
    return "".join(rows)


@pytest.fixture(scope="session")
def cola_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a learnable task in CoLA's format: 203 training and 61 dev sentences."""
    folder = tmp_path_factory.mktemp("glue")
    (folder / "CoLA").mkdir()
    (folder / "CoLA" / "train.tsv").write_text(cola_rows(203, seed=0))
    (folder / "CoLA" / "dev.tsv").write_text(cola_rows(61, seed=1))
    return folder


def squad_layout(version: str) -> dict[str, Any]:
    """SQuAD-like JSON: paragraphs of 20 words with four questions each, in 2.0 every fourth unanswerable."""
    random = np.random.default_rng(0)
    paragraphs = []
    for first in range(0, 16, 4):
        words = [str(word) for word in random.choice(WORDS, size=20)]
        asked = []
        for number in range(first, first + 4):
            place = int(random.integers(18))
            start = len(" ".join([*words[:place], ""]))
            answer = {"text": " ".join(words[place : place + 2]), "answer_start": start}
            text = " ".join(random.choice(WORDS, size=2)) + " ?"
            none = version == "2.0" and number % 4 == 3
            entry = {"id": f"q{number}", "question": text, "answers": [] if none else [answer], "is_impossible": none}
            asked.append(entry)
        paragraphs.append({"context": " ".join(words), "qas": asked})
    return {"version": f"v{version}", "data": [{"title": "Words", "paragraphs": paragraphs}]}


@pytest.fixture(scope="session")
def squad_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in SQuAD's layout whose 16 dev questions are also its training questions, in both versions."""
    folder = tmp_path_factory.mktemp("squad")
    for split, version in itertools.product(("train", "dev"), ("2.0", "1.1")):
        (folder / f"{split}-v{version}.json").write_text(json.dumps(squad_layout(version)))
    return folder


def run_queue(kind: type[FinetuneOptions], output: Path, **options: Any) -> list[RunRecord]:
    """Does the runs of a command in this process; returns all records of its output folder."""
    room: Any = {GlueOptions: glue, SquadOptions: squad, TaggingOptions: tagging}[kind]
    run_list.run_queue(kind.from_values(options | {"output": output}), room.load)
    return read_records(output / "results.jsonl")


def make_record(score: float = 0.5, **changes: Any) -> RunRecord:
    """A finished CoLA run of a small model; `changes` set fields of any of its parts."""
    identity: dict[str, Any] = {
        "task": "CoLA",
        "seed": 1,
        "model_sha256": "a" * 64,
        "random_weights": False,
        "data_sha256": "b" * 64,
        "settings": settings_for(GlueConfig, "CoLA", 256, 512, {"epochs": changes.pop("epochs", 3)}),
    }
    identity |= {name: changes.pop(name) for name in list(changes) if name in identity}
    scores = {"dev": {"matthews": score}}
    fields: dict[str, Any] = {
        "run": RunIdentity(**identity),
        "model": "runs/small/export",
        "model_size": "small",
        "train_examples": 8_551,
        "last": scores,
        "best": scores,
        "train_losses": (0.7, 0.6, 0.5),
        "collapsed": None,
        "seconds": 12.5,
        "precision": "float32",
        "world_size": 1,
    }
    return RunRecord(**(fields | changes))


def squad_record(score: float, **changes: Any) -> RunRecord:
    """A finished SQuAD 2.0 run whose scores are all `score`."""
    names = ("exact", "f1", "best_exact", "best_f1", "HasAns_exact", "HasAns_f1", "NoAns_f1")
    scores = {"dev": dict.fromkeys(names, score)}
    given: dict[str, Any] = {
        "train_examples": 130_319,
        "settings": settings_for(SquadConfig, "SQuAD 2.0", 256, 512, {}),
        "last": scores,
        "best": scores,
    }
    return make_record(task="SQuAD 2.0", **(given | changes))


def small_encoder(**sizes: Any) -> ElectraEncoder:
    """An untrained encoder for 20 tokens, without dropout, always the same one."""
    torch.manual_seed(0)
    given = {"vocab_size": 20, "embedding_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    given |= {"intermediate_size": 32, "max_position_embeddings": 16}
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    return ElectraEncoder(EncoderConfig(**given | dropout | sizes))


def untrained_run(folder: Path, shards: Path, preset: str, objective: str, *overrides: str) -> Path:
    """A run with a checkpoint of random weights, whose sampling head is far from p_S = p_G."""
    base = with_objective(PRESETS[preset], objective)
    description = described(with_overrides(base, overrides), Shards(shards))
    write_run(folder, description, {})
    model = build_model(description)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:  # LayerNorms and biases start at 0 or 1
            torch.nn.init.normal_(parameter, 0.0 if name.endswith("bias") else 1.0, 0.5)
        else:
            parameter.data *= 4
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    save(folder / CHECKPOINTS, 1, EngineState(1, {}, weights, {"exp_avg": weights}), {}, keep_last=1)
    return folder


def entry(
    good: str = "word1 good", bad: str = "word1 bad", field: str = "syntax", term: str = "binding", paradigm: str = "p"
) -> dict[str, str]:
    """A pair of BLiMP."""
    return {"sentence_good": good, "sentence_bad": bad, "field": field, "linguistics_term": term, "UID": paradigm}


def write_pairs(folder: Path, *entries: dict[str, str]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "p.jsonl").write_text("\n".join(json.dumps(e) for e in entries) + "\n")
    return folder


# 26 batches per epoch, the last with 3 examples, so that all sizes are uneven as in a real run.
SETTINGS = GlueConfig(
    learning_rate=3e-3,
    epochs=2,
    batch_size=8,
    weight_decay=0.01,
    max_length=32,
    dropout=0.0,
    attention_dropout=0.0,
    length_pool=5,
)


M = 0.15
"""Share of the tokens that are masked."""


def sampler(log_p_V: Tensor, z_V: Tensor, sampling: Sampling, original: int) -> Tensor:
    """The distribution that a replacement of one original token is drawn from, by the definitions of the method."""
    p_V = log_p_V.exp() ** (1 / sampling.temperature)
    if sampling.objective == "hp_loss":
        loss_V = softplus(z_V)
        loss_V[original] = softplus(-z_V[original])
        q_V = p_V * loss_V
    elif sampling.objective == "hp_dist":
        mixed = sampling.mixture
        q_V = (1 - mixed) * (z_V / sampling.temperature).softmax(-1) + mixed * log_p_V.exp()
    else:
        q_V = p_V
    if sampling.forbid_original:
        q_V[original] = 0
    return q_V / q_V.sum()
