"""Claims about starting from a trained pair, either Hugging Face's or an export of this project."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BertTokenizer,
    ElectraConfig,
    ElectraForMaskedLM,
    ElectraForPreTraining,
    MPNetConfig,
    MPNetForMaskedLM,
    MPNetModel,
)

from data_prep.build_shards import BuildOptions
from data_prep.build_shards import main as build_shards
from electra_sampler.foundation.config import ConfigError
from pretrain.data.batches import Batch
from pretrain.huggingface.export import export
from pretrain.huggingface.folders import read_weights
from pretrain.huggingface.stored import read_stored
from pretrain.method.electra import Electra
from pretrain.method.sampling import replace
from pretrain.planning.estimates import GPUS
from pretrain.planning.plan import make_plan
from pretrain.planning.plan_warnings import plan_warnings
from pretrain.runs.models import build_model, initial_model, load_trained
from tests.conftest import REPOSITORY
from tests.data_prep.conftest import write_byte_level_bpe
from tests.pretrain.huggingface.conftest import assert_bitwise, change_config, change_weights, options, start
from tests.pretrain.whole_runs import Launch, finished, run_arguments

STOCK = {"vocab_size": 300, "embedding_size": 24, "num_hidden_layers": 2}


@pytest.fixture
def stock_pair(tmp_path: Path) -> tuple[str, str]:
    """A generator and a discriminator saved by Hugging Face, with the shared embeddings of ELECTRA."""
    torch.manual_seed(0)
    discriminator = ElectraForPreTraining(
        ElectraConfig(**STOCK, hidden_size=64, num_attention_heads=4, intermediate_size=128)
    )
    generator = ElectraForMaskedLM(ElectraConfig(**STOCK, hidden_size=16, num_attention_heads=1, intermediate_size=32))
    generator.electra.embeddings.load_state_dict(discriminator.electra.embeddings.state_dict())
    torch.nn.init.normal_(generator.generator_lm_head.bias)
    generator.save_pretrained(tmp_path / "generator")
    discriminator.save_pretrained(tmp_path / "discriminator")
    return str(tmp_path / "generator"), str(tmp_path / "discriminator")


def stored(folder: str) -> dict[str, torch.Tensor]:
    """A stock model's weights, without a generator's output matrix, which is its word embeddings."""
    weights = read_weights(Path(folder))
    weights.pop("generator_lm_head.weight", None)
    return weights


def exported(model: Electra, shards: Path, out: Path) -> dict[str, dict[str, torch.Tensor]]:
    export(model, shards / "tokenizer", "", out, 0.15)
    return {"generator": read_weights(out / "generator"), "discriminator": read_weights(out)}


@pytest.mark.parametrize("objective", ["electra", "hp_loss", "hp_dist"])
def test_a_stock_pair_is_bitwise_unchanged_in_an_export(
    objective: str, stock_pair: tuple[str, str], shards_folder: Path, tmp_path: Path
) -> None:
    weights = exported(start(shards_folder, stock_pair, objective=objective), shards_folder, tmp_path / "out")
    for name, folder in zip(("generator", "discriminator"), stock_pair, strict=True):
        assert_bitwise(weights[name], stored(folder))


@pytest.mark.parametrize("sharing", ["nes", "gdes"])
def test_a_pair_with_two_sets_of_embeddings_keeps_both(
    sharing: str, stock_pair: tuple[str, str], shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With gdes the discriminator's tables are Delta plus the generator's, so within one rounding."""
    other = ElectraForMaskedLM.from_pretrained(stock_pair[0])
    for weight in other.electra.embeddings.parameters():
        torch.nn.init.normal_(weight)
    other.save_pretrained(stock_pair[0])
    separate = (f"model.embedding_sharing={sharing}",)
    weights = exported(start(shards_folder, stock_pair, set=separate), shards_folder, tmp_path / "out")
    assert "differ" not in capsys.readouterr().out
    for name, folder in zip(("generator", "discriminator"), stock_pair, strict=True):
        for key, before in stored(folder).items():
            tolerance = 1e-6 if sharing == "gdes" and name == "discriminator" and "embeddings" in key else 0
            assert torch.allclose(weights[name][key], before, rtol=0, atol=tolerance), (name, key)


@pytest.mark.parametrize("sharing", ["nes", "gdes"])
@pytest.mark.parametrize("which", [0, 1])
def test_both_encoders_start_with_the_embeddings_of_a_single_model(
    which: int, sharing: str, stock_pair: tuple[str, str], shards_folder: Path, tmp_path: Path
) -> None:
    separate = (f"model.embedding_sharing={sharing}",)
    weights = exported(start(shards_folder, stock_pair[which : which + 1], set=separate), shards_folder, tmp_path / "o")
    theirs = read_weights(Path(stock_pair[which]))
    embeddings = [key for key in theirs if key.startswith("electra.embeddings.")]
    assert all(torch.equal(weights[name][key], theirs[key]) for name in weights for key in embeddings)


@pytest.mark.parametrize("relative", ["true", "false"])
def test_an_export_survives_the_round_trip_bitwise(relative: str, shards_folder: Path, tmp_path: Path) -> None:
    first = start(shards_folder, (), set=(f"model.relative_position={relative}", "seed=3"))
    weights = exported(first, shards_folder, tmp_path / "out")
    again = exported(start(shards_folder, (str(tmp_path / "out"),)), shards_folder, tmp_path / "again")
    assert_bitwise(again["generator"], weights["generator"])
    assert_bitwise(again["discriminator"], weights["discriminator"])


@pytest.mark.parametrize(("ranks", "name"), [(0, "zero1_bf16"), pytest.param(2, "zero3_bf16", marks=pytest.mark.long)])
def test_a_run_in_half_precision_starts_with_bitwise_the_pairs_weights(
    ranks: int, name: str, stock_pair: tuple[str, str], shards_folder: Path, tmp_path: Path, launch: Launch
) -> None:
    """Compared in the checkpoint after a step whose learning rate changes only zeros."""
    schedule = ("optim.steps=1", "optim.warmup_steps=0", "optim.lr=1e-30")
    arguments = run_arguments(shards_folder, tmp_path / "run", *schedule)
    finished(launch(ranks, *arguments, "--init_from", *stock_pair, "--deepspeed_config", name))
    model, step = load_trained(tmp_path / "run")
    assert isinstance(model, Electra) and step == 1
    weights = exported(model, shards_folder, tmp_path / "out")
    for part, folder in zip(("generator", "discriminator"), stock_pair, strict=True):
        before = read_weights(Path(folder))
        different = [
            key for key, weight in weights[part].items() if not torch.allclose(weight, before[key], rtol=0, atol=1e-29)
        ]
        assert not different, f"{len(different)} of {len(weights[part])} tensors differ"


@pytest.mark.parametrize("objective", ["hp_loss", "hp_dist"])
def test_the_new_sampling_head_samples_from_the_pairs_p_g(
    objective: str, stock_pair: tuple[str, str], shards_folder: Path
) -> None:
    model: Any = start(shards_folder, stock_pair, objective=objective).eval()
    hidden, words = torch.randn(5, 16), model.generator.embeddings.word_embeddings
    z = words(model.sampler_transform(hidden), model.sampler_scores)
    logits = words(model.generator_predictions(hidden), model.generator_lm_head)
    assert torch.equal(z, logits) if objective == "hp_dist" else not z.any()


@pytest.mark.parametrize(
    ("preset", "sizes"),
    [("tiny", ()), ("modern_tiny", ("model.generator_hidden_size=128",))],  # a narrow one is folded
)
@pytest.mark.parametrize("objective", ["hp_loss", "hp_dist"])
def test_an_exported_sampling_head_starts_a_run_with_its_objective_bit_for_bit(
    objective: str, preset: str, sizes: tuple[str, ...], shards_folder: Path, tmp_path: Path
) -> None:
    model = start(shards_folder, (), preset=preset, objective=objective, set=sizes)
    for name, parameter in model.named_parameters():
        if name.startswith("sampler_"):
            torch.nn.init.normal_(parameter)
    exported(model, shards_folder, tmp_path / "out")
    again = start(shards_folder, (str(tmp_path / "out"),), preset=preset, objective=objective).state_dict()
    assert_bitwise(again, model.state_dict())
    other = {"hp_loss": "hp_dist", "hp_dist": "hp_loss"}[objective]
    fresh = start(shards_folder, (str(tmp_path / "out"),), preset=preset, objective=other).state_dict()
    assert not torch.equal(fresh["sampler_transform.dense.weight"], again["sampler_transform.dense.weight"])


def test_the_runs_model_has_the_pairs_sizes_and_its_own_dropout(
    stock_pair: tuple[str, str], shards_folder: Path
) -> None:
    model: Any = make_plan(options(shards_folder, stock_pair, set=("model.dropout=0.25",))).run.model
    assert (model.layers, model.hidden_size, model.generator_hidden_size, model.embedding_size) == (2, 64, 16, 24)
    assert (model.relative_position, model.dropout) == (False, 0.25)


def test_a_run_without_a_pair_starts_as_before(shards_folder: Path) -> None:
    description = make_plan(options(shards_folder, ())).description
    assert_bitwise(initial_model(description, None).state_dict(), build_model(description).state_dict())


@pytest.mark.parametrize(
    ("place", "field", "value", "message"),
    [
        (0, "num_attention_heads", 2, "has num_attention_heads 2, expected 1 with this configuration"),
        (0, "vocab_size", 299, "has vocab_size 299, expected 300"),
        (0, "num_hidden_layers", 3, "has num_hidden_layers 3, expected 2"),
        (0, "layer_norm_eps", 1e-5, "generator has layer_norm_eps 1e-05, expected 1e-12"),
        (1, "layer_norm_eps", 1e-5, "generator has layer_norm_eps 1e-12, expected 1e-05"),
        (0, "type_vocab_size", 3, "has type_vocab_size 3, expected"),
        (1, "type_vocab_size", 3, "has type_vocab_size 3, expected"),
        (0, "position_embedding_type", "relative_key", "got 'relative_key', expected: .*'absolute'"),
        (1, "position_embedding_type", "relative_key", "got 'relative_key', expected: .*'absolute'"),
    ],
)
def test_a_pair_that_does_not_fit_each_other_or_this_model_is_refused_by_field(
    place: int, field: str, value: object, message: str, stock_pair: tuple[str, str], shards_folder: Path
) -> None:
    change_config(stock_pair[place], {field: value})
    with pytest.raises(ConfigError, match=message):
        make_plan(options(shards_folder, stock_pair))


def test_a_pair_with_other_tokens_is_refused(stock_pair: tuple[str, str], shards_folder: Path, tmp_path: Path) -> None:
    tokens = (shards_folder / "tokenizer" / "vocab.txt").read_text().splitlines()
    tokens[-1], tokens[-2] = tokens[-2], tokens[-1]
    (Path(stock_pair[1]) / "vocab.txt").write_text("\n".join(tokens) + "\n")
    with pytest.raises(ConfigError, match=r"vocabulary of .* is neither the data's nor its beginning"):
        make_plan(options(shards_folder, stock_pair))


def test_a_pair_whose_tokenizer_treats_case_otherwise_is_a_warning_before_the_start(
    stock_pair: tuple[str, str], shards_folder: Path
) -> None:
    shutil.copy(shards_folder / "tokenizer" / "vocab.txt", stock_pair[1])
    for lower_case, warned in (("true", 0), ("false", 1)):
        (Path(stock_pair[1]) / "tokenizer_config.json").write_text(f'{{"do_lower_case": {lower_case}}}')
        found = plan_warnings(make_plan(options(shards_folder, stock_pair)), 10**6, GPUS["v100", "fp16"])
        said = (
            f"init_from: the tokenizer of {stock_pair[1]} treats case, accents or Chinese otherwise"
            f" than that of {shards_folder}"
        )
        assert sum(warning.startswith(said) for warning in found) == warned


def cached(folder: str, cache: Path, name: str) -> None:
    """Puts a folder where the hub's client caches a download of this name."""
    entry = cache / f"models--{name.replace('/', '--')}"
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text("0123456789abcdef0123456789abcdef01234567")
    shutil.copytree(folder, entry / "snapshots" / "0123456789abcdef0123456789abcdef01234567")


def test_names_on_the_hub_are_found_in_its_cache_or_are_one_clear_error(
    stock_pair: tuple[str, str], tmp_path: Path
) -> None:
    """Runs in a new process, because the hub's client reads its settings once, on import."""
    cached(stock_pair[0], tmp_path / "hub", "someone/generator")
    cached(stock_pair[1], tmp_path / "hub", "someone/discriminator")
    (snapshot,) = (tmp_path / "hub" / "models--someone--discriminator" / "snapshots").iterdir()
    (snapshot / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    program = """
from electra_sampler.foundation.config import ConfigError
from pretrain.huggingface.folders import source_of
from pretrain.huggingface.init_from import find_models
print([source_of(name) for name in ("someone/discriminator", "someone/generator", "my own/folder gone")])
donors = find_models(["someone/generator", "someone/discriminator"])
print([(donor.role, donor.config.embedding_size) for donor in donors])
try:
    find_models(["someone/missing", "someone/discriminator"])
except ConfigError as error:
    print(error)
"""
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    sources, found, missing = done.stdout.splitlines()
    names = ("someone/discriminator", " (license apache-2.0)"), ("someone/generator", ""), ("my own/folder gone", "")
    assert sources == str([*names]), "for model cards"
    assert found == "[('generator', 24), ('discriminator', 24)]"
    assert "someone/missing is not a local folder and could not be downloaded from the hub" in missing


def test_names_that_are_no_models_to_start_from_are_one_clear_error(
    stock_pair: tuple[str, str], shards_folder: Path
) -> None:
    with pytest.raises(ConfigError, match="expected GENERATOR DISCRIMINATOR: an ElectraForMaskedLM, then"):
        make_plan(options(shards_folder, stock_pair[::-1]))
    (Path(stock_pair[1]) / "generator").mkdir()
    with pytest.raises(ConfigError, match=r"generator has no config\.json"):
        make_plan(options(shards_folder, stock_pair[1:]))
    with pytest.raises(ConfigError, match=r"init_from: got .*, expected GENERATOR DISCRIMINATOR"):
        make_plan(options(shards_folder, (*stock_pair, stock_pair[1])))
    for mlm in ({"objective": "mlm"}, {"row": "BERT"}):
        with pytest.raises(ConfigError, match="init_from: the objective mlm trains one model, got a generator and"):
            make_plan(options(shards_folder, stock_pair, **mlm))
    with pytest.raises(ConfigError, match="use --objective mlm"):
        make_plan(options(shards_folder, stock_pair, set=("objective.name=mlm",)))
    shutil.copy(Path(stock_pair[1]) / "model.safetensors", stock_pair[0])
    with pytest.raises(ConfigError, match=r"weights of .*generator do not fit its config\.json: size mismatch"):
        start(shards_folder, stock_pair)


def test_a_generator_with_its_own_output_matrix_is_refused(stock_pair: tuple[str, str], shards_folder: Path) -> None:
    generator = ElectraForMaskedLM.from_pretrained(stock_pair[0], tie_word_embeddings=False)
    torch.nn.init.normal_(generator.generator_lm_head.weight)
    generator.save_pretrained(stock_pair[0])
    with pytest.raises(ConfigError, match=r"has tie_word_embeddings False, expected True: the output matrix"):
        make_plan(options(shards_folder, stock_pair))
    change_config(stock_pair[0], {"tie_word_embeddings": True})  # the matrix is still separate
    with pytest.raises(ConfigError, match=r"generator_lm_head\.weight of .* differs from its word embeddings"):
        start(shards_folder, stock_pair)


@pytest.mark.parametrize("place", [0, 1])
def test_a_weight_that_would_be_dropped_is_refused_by_name(
    place: int, stock_pair: tuple[str, str], shards_folder: Path
) -> None:
    change_weights(stock_pair[place], {"classifier.weight": torch.ones(2)})
    with pytest.raises(ConfigError, match=r"holds 1 weight that the model .* lacks, such as classifier\.weight"):
        start(shards_folder, stock_pair)


@pytest.mark.parametrize("name", ["word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"])
def test_whichever_embeddings_differ_the_discriminators_are_used_and_a_message_says_so(
    name: str, stock_pair: tuple[str, str], shards_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(shards_folder, stock_pair)
    assert "differ" not in capsys.readouterr().out
    changed = f"electra.embeddings.{name}.weight"
    change_weights(stock_pair[0], {changed: stored(stock_pair[0])[changed] + 1})
    model = start(shards_folder, stock_pair)
    assert "the discriminator's are used for both" in capsys.readouterr().out
    used = model.generator.embeddings.get_parameter(f"{name}.weight")
    assert torch.equal(used, stored(stock_pair[1])[changed])


def masked(batch: Batch, mask_id: int) -> dict[str, torch.Tensor]:
    """A batch for the loss of Hugging Face's generator."""
    chosen_BL = batch.masked_BL.bool()
    return {
        "input_ids": batch.input_ids_BL.masked_fill(chosen_BL, mask_id),
        "labels": batch.input_ids_BL.masked_fill(~chosen_BL, -100),
        "attention_mask": batch.attention_mask_BL.long(),
        "token_type_ids": batch.token_type_ids_BL,
    }


def test_losses_before_the_first_step_equal_hugging_faces(
    stock_pair: tuple[str, str], shards_folder: Path, batch: Batch
) -> None:
    model = start(shards_folder, stock_pair, objective="electra").eval()
    segments_BL = torch.arange(batch.input_ids_BL.shape[1]).expand_as(batch.input_ids_BL) % 2
    batch = batch._replace(token_type_ids_BL=segments_BL)
    output = model(batch)
    mask, valid_BK = batch.attention_mask_BL, batch.masked_valid_BK
    inputs = masked(batch, model.special_mask_id)
    theirs = ElectraForMaskedLM.from_pretrained(stock_pair[0]).eval()(**inputs).loss
    assert torch.isclose(output.generator_loss_BK[valid_BK].mean(), theirs, atol=1e-5, rtol=0)

    replaced_BL = replace(batch.input_ids_BL, batch.masked_positions_BK, valid_BK, output.detected.draw.tokens_BK)
    assert output.detected.replaced_BL.any()
    discriminator = ElectraForPreTraining.from_pretrained(stock_pair[1]).eval()
    labels_BL = output.detected.replaced_BL.long()
    theirs = discriminator(**inputs | {"input_ids": replaced_BL, "labels": labels_BL}).loss
    assert torch.isclose(output.detected.discriminator_loss_BL[mask].mean(), theirs, atol=1e-5, rtol=0)


def test_a_discriminator_only_gets_a_fresh_generator_of_the_presets_proportion(
    stock_pair: tuple[str, str], shards_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = start(shards_folder, stock_pair[1:])
    assert model.generator.config.hidden_size == 32  # half, as tiny's
    weights = exported(model, shards_folder, tmp_path / "out")["discriminator"]
    assert_bitwise(weights, stored(stock_pair[1]))
    assert (
        "start fresh, except for shared embeddings: generator, generator_predictions, generator_lm_head,"
        " sampler_transform, sampler_scores\n"
    ) in capsys.readouterr().out
    narrow = start(shards_folder, stock_pair[1:], set=("model.generator_hidden_size=16",))
    assert narrow.generator.config.hidden_size == 16


def test_a_generator_only_gets_a_fresh_discriminator_of_the_presets_proportion(
    stock_pair: tuple[str, str], shards_folder: Path, tmp_path: Path
) -> None:
    model = start(shards_folder, stock_pair[:1])
    assert model.discriminator.config.hidden_size == 32 and model.discriminator.config.num_attention_heads == 2
    weights = exported(model, shards_folder, tmp_path / "out")["generator"]
    assert_bitwise(weights, stored(stock_pair[0]))


def test_a_masked_language_model_continues_as_one_with_hugging_faces_loss(
    stock_pair: tuple[str, str], shards_folder: Path, batch: Batch
) -> None:
    model = start(shards_folder, stock_pair[:1], objective="mlm").eval()
    assert_bitwise(model.exported(".").state_dict(), stored(stock_pair[0]))
    theirs = ElectraForMaskedLM.from_pretrained(stock_pair[0]).eval()(**masked(batch, model.special_mask_id)).loss
    assert torch.isclose(model(batch).loss, theirs, atol=1e-5, rtol=0)


def test_a_discriminator_starts_a_masked_language_models_encoder(
    stock_pair: tuple[str, str], shards_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = start(shards_folder, stock_pair[1:], objective="mlm").state_dict()
    before = read_weights(Path(stock_pair[1]))
    assert all(torch.equal(weights[name], before[name]) for name in before if name.startswith("electra."))
    assert "except for shared embeddings: generator_predictions, generator_lm_head\n" in capsys.readouterr().out


def test_an_encoder_without_heads_gets_a_fresh_discriminator_head(
    stock_pair: tuple[str, str], shards_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = ElectraForPreTraining.from_pretrained(stock_pair[1]).electra
    encoder.save_pretrained(stock_pair[1])
    model = start(shards_folder, stock_pair, objective="electra")
    assert "except for shared embeddings: discriminator_predictions\n" in capsys.readouterr().out
    assert_bitwise(model.discriminator.state_dict(), encoder.state_dict())


def test_positions_are_extended_by_repeating_the_table(stock_pair: tuple[str, str], shards_folder: Path) -> None:
    model = start(shards_folder, stock_pair, set=("model.max_positions=1100",))
    table = model.generator.get_parameter("embeddings.position_embeddings.weight")
    theirs = read_weights(Path(stock_pair[1]))["electra.embeddings.position_embeddings.weight"]
    assert table.shape[0] == 1100
    assert torch.equal(table[:512], theirs) and torch.equal(table[512:1024], theirs)
    assert torch.equal(table[1024:], theirs[:76])


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"objective": "mlm", "set": ("model.hidden_size=32",)},
            "generator has hidden_size 16, expected 32 with this configuration",
        ),
        ({"set": ("model.max_positions=256",)}, "has max_position_embeddings 512, expected 256"),
        ({"set": ("model.layer_norm_eps=1e-5",)}, "has layer_norm_eps 1e-12, expected 1e-05"),
    ],
    ids=["the width of the one model", "fewer positions", "another LayerNorm"],
)
def test_a_setting_that_contradicts_the_model_is_refused_by_field(
    given: dict[str, object], problem: str, stock_pair: tuple[str, str], shards_folder: Path
) -> None:
    with pytest.raises(ConfigError, match=problem):
        make_plan(options(shards_folder, stock_pair[:1], **given))


@pytest.mark.parametrize(
    ("length", "table", "problem"),
    [
        (1024, torch.zeros(512, 24), r"weights of .*discriminator do not fit its config\.json: size mismatch"),
        (512, torch.zeros(()), r"do not fit its config\.json: size mismatch"),
        (
            512,
            torch.full((512, 64), torch.nan),
            r"holds NaN or infinity in electra\.embeddings\.position_embeddings\.weight",
        ),
    ],
    ids=["of another length than its configuration says", "without rows", "of NaN"],
)
def test_a_damaged_table_of_positions_is_refused_by_name_and_not_extended(
    length: int, table: torch.Tensor, problem: str, stock_pair: tuple[str, str], shards_folder: Path
) -> None:
    change_config(stock_pair[1], {"max_position_embeddings": length})
    change_weights(stock_pair[1], {"electra.embeddings.position_embeddings.weight": table})
    with pytest.raises(ConfigError, match=problem):
        start(shards_folder, stock_pair[1:])


def test_relative_biases_are_kept_with_more_positions(shards_folder: Path, tmp_path: Path) -> None:
    first = start(shards_folder, (), set=("seed=3",))
    exported(first, shards_folder, tmp_path / "out")
    again = start(shards_folder, (str(tmp_path / "out"),), set=("model.max_positions=2048",))
    biases = [model.discriminator.get_parameter("encoder.relative_attention_bias.weight") for model in (first, again)]
    assert torch.equal(biases[0], biases[1])


@pytest.fixture
def known_pair(stock_pair: tuple[str, str], shards_folder: Path) -> tuple[str, str]:
    """The stock pair with a tokenizer whose vocabulary is the first 297 of the data's 300 tokens."""
    tokens = (shards_folder / "tokenizer" / "vocab.txt").read_text().splitlines()[:297]
    for folder, kind in zip(stock_pair, (ElectraForMaskedLM, ElectraForPreTraining), strict=True):
        model = kind.from_pretrained(folder)
        model.resize_token_embeddings(297)
        model.save_pretrained(folder)
        (Path(folder) / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return stock_pair


def test_a_new_token_starts_as_the_mean_of_its_pieces(known_pair: tuple[str, str], shards_folder: Path) -> None:
    model: Any = start(shards_folder, known_pair, objective="hp_dist")
    new = (shards_folder / "tokenizer" / "vocab.txt").read_text().splitlines()[297:]
    theirs = BertTokenizer(str(Path(known_pair[1]) / "vocab.txt"))
    generator = read_weights(Path(known_pair[0]))
    words, bias = generator["electra.embeddings.word_embeddings.weight"], generator["generator_lm_head.bias"]
    matrix = model.discriminator.embeddings.word_embeddings.weight
    assert torch.equal(matrix[:297], words)
    assert any(not token.startswith("##") for token in new)
    for number, token in enumerate(new, 297):
        if not token.startswith("##"):
            pieces = theirs.convert_tokens_to_ids(theirs.tokenize(token))
            assert torch.allclose(matrix[number], words[pieces].mean(0), atol=1e-7)
            assert torch.isclose(model.generator_lm_head.bias[number], bias[pieces].mean(), atol=1e-7)
            assert torch.isclose(model.sampler_scores.bias[number], bias[pieces].mean(), atol=1e-7)


def test_a_word_added_to_a_byte_level_bpe_starts_as_the_mean_of_its_pieces(tmp_path: Path) -> None:
    """Added and saved by transformers, as the guide says."""
    donor = tmp_path / "donor"
    write_byte_level_bpe(donor)
    tokenizer = AutoTokenizer.from_pretrained(donor)
    pieces, known = tokenizer("Größe", add_special_tokens=False)["input_ids"], len(tokenizer)
    tokenizer.add_tokens(["Größe"])
    tokenizer.save_pretrained(tmp_path / "longer")
    (tmp_path / "a.txt").write_text("then the Größe of the day\n\n" * 20)
    build = {"input": (tmp_path / "a.txt",), "vocab": str(tmp_path / "longer"), "output": tmp_path / "shards"}
    build_shards(BuildOptions.from_values(build | {"sentences": "line", "seq_length": 16, "held_out": 0, "workers": 1}))
    config = ElectraConfig(**STOCK | {"vocab_size": known}, hidden_size=64, num_attention_heads=4)
    model = ElectraForPreTraining(config)
    model.save_pretrained(donor)
    words = model.electra.embeddings.word_embeddings.weight
    matrix = start(tmp_path / "shards", (str(donor),)).discriminator.embeddings.word_embeddings.weight
    assert len(pieces) == 7 and matrix.shape[0] == known + 1
    assert torch.equal(matrix[:known], words) and torch.allclose(matrix[known], words[pieces].mean(0), atol=1e-7)


@pytest.mark.parametrize(
    ("pair", "which", "times"),
    [
        ("known_pair", slice(2), 1),
        ("known_pair", slice(1), 1),
        ("known_pair", slice(1, 2), 1),
        ("stock_pair", slice(2), 0),
    ],
)
def test_a_run_says_once_how_many_tokens_are_new_to_the_model_if_any_are(
    pair: str,
    which: slice,
    times: int,
    shards_folder: Path,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    start(shards_folder, request.getfixturevalue(pair)[which])
    said = "init_from: 3 of 300 tokens are new to the model; each starts as the mean of its pieces"
    assert [line for line in capsys.readouterr().out.splitlines() if "tokens are new" in line] == [said] * times


def test_more_tokens_than_the_model_has_need_its_tokenizer(known_pair: tuple[str, str], shards_folder: Path) -> None:
    for folder in known_pair:
        (Path(folder) / "vocab.txt").unlink()
        (Path(folder) / "tokenizer.json").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match="has vocab_size 297, expected 300"):
        make_plan(options(shards_folder, known_pair))


SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.3,
}


def save(kind: type, config: object, folder: Path) -> Any:
    torch.manual_seed(0)
    model = kind(config).eval()
    for parameter in model.parameters():  # biases and LayerNorms away from 0 and 1
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", [BertModel, BertForMaskedLM])
def test_a_bert_starts_the_discriminators_encoder_with_equal_states(
    kind: type, shards_folder: Path, batch: Batch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bert = save(kind, BertConfig(**SIZES), tmp_path / "bert")
    model = start(shards_folder, (str(tmp_path / "bert"),), objective="electra").eval()
    assert "generator, generator_predictions, generator_lm_head, discriminator_predictions" in capsys.readouterr().out
    segments_BL = torch.arange(batch.input_ids_BL.shape[1]).expand_as(batch.input_ids_BL) % 2
    mine = model.discriminator(batch.input_ids_BL, batch.attention_mask_BL, segments_BL)
    encoder = bert.bert if kind is BertForMaskedLM else bert
    theirs = encoder(batch.input_ids_BL, batch.attention_mask_BL.long(), segments_BL).last_hidden_state
    assert torch.allclose(mine[batch.attention_mask_BL], theirs[batch.attention_mask_BL], atol=1e-5)
    assert model.generator.embeddings is model.discriminator.embeddings


def test_weights_under_the_original_berts_names_are_the_same(tmp_path: Path) -> None:
    save(BertModel, BertConfig(**SIZES), tmp_path)
    before, path = read_stored(tmp_path).weights(), tmp_path / "model.safetensors"
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): weight
        for name, weight in load_file(path).items()
    }
    save_file({f"bert.{name}": weight for name, weight in old.items()}, path)
    assert_bitwise(read_stored(tmp_path).weights(), before)


@pytest.mark.parametrize("kind", [MPNetModel, MPNetForMaskedLM])
@pytest.mark.parametrize("eps", [1e-12, 1e-5, 1e-2])  # microsoft/mpnet-base has 1e-5
def test_an_mpnet_starts_the_discriminators_encoder_with_equal_states(
    eps: float, kind: type, shards_folder: Path, batch: Batch, tmp_path: Path
) -> None:
    mpnet = save(kind, MPNetConfig(**SIZES, max_position_embeddings=66, layer_norm_eps=eps), tmp_path / "mpnet")
    model = start(shards_folder, (str(tmp_path / "mpnet"),)).eval()
    config: Any = model.discriminator.config
    assert {module.eps for module in model.modules() if isinstance(module, torch.nn.LayerNorm)} == {eps}
    assert config.relative_position and config.max_position_embeddings == 64
    mine = model.discriminator(batch.input_ids_BL, batch.attention_mask_BL, batch.token_type_ids_BL)
    encoder = mpnet.mpnet if kind is MPNetForMaskedLM else mpnet
    theirs = encoder(batch.input_ids_BL, batch.attention_mask_BL.long()).last_hidden_state
    assert torch.allclose(mine[batch.attention_mask_BL], theirs[batch.attention_mask_BL], atol=1e-5)
    other_segment = model.discriminator(batch.input_ids_BL, batch.attention_mask_BL, 1 - batch.token_type_ids_BL)
    assert torch.equal(mine, other_segment)
