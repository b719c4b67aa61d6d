"""Claims about estimates of a run's needs, against independent counts."""

import gc
import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from bench.batches import random_batch
from electra_sampler.foundation.config import ConfigError
from pretrain.config import with_overrides
from pretrain.data.batches import Batch
from pretrain.engine.deepspeed_config import resolve
from pretrain.job.processes import start_processes
from pretrain.method.mlm import MaskedLM
from pretrain.method.registry import objective_class
from pretrain.model import ops
from pretrain.model.config import ElectraModelConfig
from pretrain.model.encoder import ElectraStack
from pretrain.model.kernels import cuda_ops
from pretrain.planning import estimates
from pretrain.planning.estimates import (
    GPUS,
    OF_PARAMETER,
    Sizes,
    flops_per_token,
    least_parameters,
    memory_per_process,
    seconds_on_cpu,
    step_seconds,
    this_machine,
    too_large,
)
from pretrain.planning.options import RunOptions
from pretrain.planning.plan import Plan, make_plan
from pretrain.presets import TINY, preset, with_objective
from tests.conftest import REPOSITORY
from tests.deepspeed_values import values_of
from tests.pretrain.conftest import OBJECTIVES, SMALL_MODEL, new_model

VOCABULARY, MASK = 30_522, 103


@pytest.mark.parametrize(
    ("name", "length", "objective", "millions"),
    [
        # 6 x weights of matrix products + 12 x layers x length x width, and 6 x 15% of each vocabulary head's
        ("small", 128, "electra", 70.2),
        ("small", 512, "hp_dist", 91.4),
        ("base", 512, "electra", 668),
        ("base", 512, "hp_dist", 689),
    ],
)
def test_flops_per_word_piece_follow_the_usual_formula(name: str, length: int, objective: str, millions: float) -> None:
    run = with_objective(preset(name), objective)
    counted = flops_per_token(run.model, run.objective, VOCABULARY, length)
    assert counted == pytest.approx(millions * 1e6, rel=0.01)


def test_flops_of_the_forward_are_those_counted_by_pytorch() -> None:
    model = ElectraModelConfig(
        layers=2, hidden_size=64, heads=2, intermediate_size=128, embedding_size=32, generator_hidden_size=32
    )
    length, config = 32, model.discriminator(100)
    encoder = model.parts.encoder(config, model.parts.embeddings(config)).eval().double()
    ids_BL = torch.zeros(3, length, dtype=torch.int64)
    # On a CPU PyTorch does not count attention in one kernel.
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        encoder(ids_BL, torch.ones_like(ids_BL, dtype=torch.bool), ids_BL)
    per_token = flops_per_token(model, MaskedLM.Config(), 100, length) / 3
    head = 0.15625 * 2 * 32 * (100 + 64)  # 5 of 32 positions
    assert counter.get_total_flops() / (3 * length) == pytest.approx(per_token - head)


WIDE = ElectraModelConfig(
    layers=2,
    hidden_size=128,
    heads=2,
    intermediate_size=512,
    embedding_size=128,
    generator_hidden_size=64,
    attention_dropout=0.0,
)


@pytest.mark.parametrize("name", ["electra", "hp_loss", "hp_dist", "hp_loss_power", "oracle"])
def test_flops_of_a_step_are_those_counted_by_pytorch_forward_and_backward(name: str) -> None:
    """Within 3%: the discriminator's head and the generator's narrow input projection are not counted."""
    torch.manual_seed(0)
    model = new_model(name, WIDE, 2000).double()  # PyTorch does not count oneDNN's products in fp32
    with FlopCounterMode(display=False) as counter:
        model(random_batch(3, 64, 2000)).loss.backward()
    per_token = counter.get_total_flops() / (3 * 64)
    assert flops_per_token(WIDE, model.objective, 2000, 64) == pytest.approx(per_token, rel=0.03)


def test_the_heads_flops_and_scores_follow_the_masking_rate() -> None:
    plain = preset("small")
    more = with_overrides(plain, ["mask_rate=0.3"])
    deepspeed = resolve(
        values_of("zero0_fp32"),
        batch_size=128,
        world_size=1,
        device_type="cpu",
        clipping=plain.optim.gradient_clipping,
    )
    one, at_15, at_30 = (
        flops_per_token(more.model, more.objective, VOCABULARY, 512, rate) for rate in (0.001, 0.15, 0.3)
    )
    assert (at_30 - one) / (at_15 - one) == pytest.approx((154 - 1) / (77 - 1))
    assert Sizes(more, VOCABULARY, 512).flops == at_30
    assert Sizes(plain, VOCABULARY, 512).flops == at_15
    kept = [
        memory_per_process(deepspeed, 1, 0, Sizes(run, VOCABULARY, 512), (0, 0)).activations for run in (plain, more)
    ]
    assert kept[1] - kept[0] == deepspeed.micro_batch_size * 4 * 4 * 77 * VOCABULARY


def test_separate_embeddings_add_look_ups_but_no_flops(batch: Batch) -> None:
    counts = []
    for sharing in ("es", "nes", "gdes"):
        sizes = SMALL_MODEL.model_copy(update={"embedding_sharing": sharing})
        model = new_model("hp_loss", sizes).double()
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            model(batch).loss.backward()
        counts.append((counter.get_total_flops(), flops_per_token(sizes, model.objective, 7, 16)))
    assert counts[0][0] > 0 and counts[0] == counts[1] == counts[2]


@pytest.mark.parametrize(
    ("file", "bytes_a_parameter"),
    [
        ("zero0_fp32", 4 + 4 + 8),
        ("zero1_fp32", 4 + 4 + 12 / 4),
        ("zero1_fp16", 2 + 2 + 12 / 4),
        ("zero2_bf16", 2 + 2 / 4 + 12 / 4),
        ("zero3_bf16", 2 / 4 + 2 / 4 + 12 / 4),
    ],
)
def test_a_gpus_states_shrink_as_zero_partitions_them(file: str, bytes_a_parameter: float) -> None:
    run = preset("base")
    deepspeed = resolve(
        values_of(file), batch_size=64, world_size=4, device_type="cuda", clipping=run.optim.gradient_clipping
    )
    memory = memory_per_process(deepspeed, 4, 1000, Sizes(run, VOCABULARY, 128), (8, 0))
    assert memory.weights + memory.gradients + memory.optimizer == pytest.approx(1000 * bytes_a_parameter)
    assert deepspeed.precision == file[-4:]


@pytest.mark.parametrize(
    "wider", ["model.hidden_size=512", "model.generator_hidden_size=512", "model.embedding_size=64"]
)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_weights_counted_before_a_model_is_made_are_at_most_those_it_has(objective: str, wider: str) -> None:
    run = with_overrides(with_objective(preset("small"), objective), [wider])
    with torch.device("meta"):
        trained = objective_class(objective)
        parameters = sum(p.numel() for p in trained(run.model, run.objective, VOCABULARY, MASK).parameters())
    assert least_parameters(Sizes(run, VOCABULARY, 128)) <= parameters


@pytest.mark.parametrize(
    ("overrides", "on_gpu", "problem"),
    [
        (
            "model.hidden_size=131072 model.generator_hidden_size=131072",
            True,
            r"model: got .*hidden_size=131072.* expected one whose weights fit the",
        ),
        (
            "batch_size=1048576",
            False,
            r"batch_size: got 1048576, .* holds 1048576 .* --set deepspeed.train_micro_batch_size_per_gpu=N",
        ),
        (
            "batch_size=1048576",
            True,
            r"batch_size: got 1048576, .* expected a micro-batch that fits 1,024.0 GiB, not 3,072.0 GiB or more",
        ),
    ],
)
def test_a_model_too_large_for_memory_is_refused_before_it_is_made(overrides: str, on_gpu: bool, problem: str) -> None:
    run = with_overrides(preset("small"), overrides.split())
    assert any(re.match(problem, found) for found in too_large(Sizes(run, VOCABULARY, 512), run.batch_size, on_gpu))
    small = run.model_copy(update={"model": preset("small").model})
    assert not [*too_large(Sizes(small, VOCABULARY, 512), 1, on_gpu)]


def test_a_containers_memory_bounds_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    run = preset("base")
    assert not [*too_large(Sizes(run, VOCABULARY, 128), 1, on_gpu=False)]
    monkeypatch.setattr(estimates, "memory", lambda: 2**28)
    (problem,) = too_large(Sizes(run, VOCABULARY, 128), 1, on_gpu=False)
    assert re.search(r"weights fit the 0\.2 GiB of memory that a process may use here, not 0\.\d", problem)


class Alive(TorchDispatchMode):
    """Watches every operation for the storages it makes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.most = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.weights:
                    self.storages[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.most = max(self.most, self.bytes())
        return result

    def bytes(self) -> float:
        """Returns the bytes of those that still exist."""
        self.storages = {key: made for key, made in self.storages.items() if not made[0].expired()}
        return float(sum(size for _, size in self.storages.values()))


@pytest.mark.parametrize(("objective", "recomputes"), [("hp_loss", False), ("hp_loss", True), ("mlm", False)])
def test_activations_are_the_tensors_that_a_forward_in_half_precision_keeps_on_a_gpu(
    objective: str, recomputes: bool, plain_ops: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, operations are Triton's, here interpreted, and dropout keeps a mask of one byte per element."""
    pytest.importorskip("triton")
    cuda_ops.use(cuda_ops.LEAST_CAPABILITY)
    monkeypatch.setattr(ops, "dropout", lambda values, p: torch.native_dropout(values, p, True)[0])
    sizes = ["layers=2", "heads=1", "hidden_size=64", "generator_hidden_size=32", "embedding_size=32", "dropout=.1"]
    run = with_overrides(
        with_objective(preset("tiny"), objective), [f"model.{size}" for size in sizes] + ["batch_size=2"]
    )
    torch.manual_seed(0)
    model = objective_class(objective)(run.model, run.objective, 300, MASK).half().train()
    for module in model.modules():
        if isinstance(module, ElectraStack):
            module.recompute = recomputes
    batch = random_batch(2, 32, 300)
    with Alive(model) as alive:
        loss = model(batch).loss
        gc.collect()  # cycles in Triton's interpreter hold tensors
        kept = alive.bytes()
        loss.backward()
    values = values_of("zero1_fp16") | ({"activation_checkpointing": {}} if recomputes else {})
    deepspeed = resolve(values, batch_size=2, world_size=1, device_type="cuda", clipping=run.optim.gradient_clipping)
    estimated = memory_per_process(deepspeed, 1, 0, Sizes(run, 300, 32), (8, 0)).activations
    if recomputes:  # besides each layer's input, the tensors of the layer that is recomputed
        assert kept < estimated < alive.most
    else:
        stacks = [module for module in model.modules() if isinstance(module, ElectraStack)]
        trained = [stack for stack in stacks if stack.relative_attention_bias.weight.requires_grad]
        tiles = sum(stack.config.num_attention_heads * 3 * 64 * 64 * 2 for stack in trained)  # of biases, at any batch
        assert kept - tiles == pytest.approx(estimated, rel=0.1)  # small tensors beside small layers


def planned(shards: Path, folder: Path, **options: object) -> Plan:
    values = {"data": (shards,), "dry_run": True, "output": folder / "run", **options}
    return make_plan(RunOptions.from_values(values))


def test_this_machine_is_measured_alone_and_in_a_job_which_leaves_the_random_state_unchanged(plain_ops: None) -> None:
    torch.manual_seed(3)
    state, sizes = torch.get_rng_state(), Sizes(TINY, 2048, 64)
    alone, together = this_machine(sizes, "fp32"), this_machine(sizes, "fp32", 1, start_processes())
    assert torch.equal(torch.get_rng_state(), state)
    for machine in (alone, together):
        assert 1e8 < machine.flops < 4 * machine.products < 1e14  # other processes may slow down either
    assert "core" in alone.name and "timed now" in alone.source
    assert alone.name == together.name and alone.memory == together.memory


def test_the_update_and_the_exchange_between_processes_count_on_a_cpu(plain_ops: None) -> None:
    sizes = Sizes(TINY.model_copy(update={"batch_size": 2}), 2048, 64)  # so small a batch that they take the time
    of_step = sizes.length * seconds_on_cpu(sizes, "fp32", torch.device("cpu"), 1e11, processes=2)
    assert of_step > OF_PARAMETER[1] * least_parameters(sizes)


@pytest.mark.parametrize(("gpu", "precision"), GPUS)
def test_a_gpu_is_forecast_by_its_published_speed(
    gpu: str, precision: str, shards_folder: Path, tmp_path: Path
) -> None:
    plan = planned(shards_folder, tmp_path, forecast=gpu, deepspeed_config=f"zero1_{precision}")
    machine = plan.machine()
    narrow = min(1.0, plan.run.model.hidden_size / GPUS[gpu, precision].width)
    assert machine.name == f"1 {gpu.upper()}" and machine.flops == GPUS[gpu, precision].flops * narrow
    padded = plan.sizes.flops * plan.run.batch_size * plan.shards.manifest.seq_length / machine.flops
    assert plan.seconds(machine, 2) > 2 * padded, "padding and the host's time count"


def of_paper(preset_name: str, gpu: str, processes: int, length: int, *, batch: int = 0, graphs: bool = False) -> float:
    """The forecast seconds of a step of a preset that trains on GPUs of this name, without reports."""
    run = preset(preset_name)
    run = run.model_copy(update={"batch_size": batch or run.batch_size})
    machine = next(found for (name, kind), found in GPUS.items() if name == gpu and kind != "fp32")
    flops = processes * machine.flops * min(1.0, run.model.hidden_size / machine.width)
    return step_seconds(Sizes(run, 30_522, length), machine._replace(flops=flops), length, 1, graphs)


def test_forecasts_agree_with_what_an_h100_took_and_with_the_papers_days() -> None:
    """The table of docs/evidence/speed.md, from the committed results."""
    results = REPOSITORY / "bench/results/h100"
    ablation = json.loads((results / "c-ablation.json").read_text())
    steps = {name.removeprefix("ablation "): found["found"] for name, found in ablation.items()}
    lines = []
    for name, length, rows, row, other in (
        ("base", 512, 32, "as shipped", "without CUDA graphs"),
        ("small", 128, 128, "as shipped", "without CUDA graphs"),
        ("modern_base", 512, 32, "rotation and gated GELU compiled, as shipped", None),
    ):
        for graphs, part in ((True, row), (False, other)):
            if part:
                took = [of["seconds"] for label, of in steps[f"{name} {length}"].items() if label.startswith(part)]
                forecast = of_paper(name, "h100", 1, length, batch=rows, graphs=graphs)
                assert all(1 / 1.3 < forecast / seconds < 1.3 for seconds in took), (name, graphs, forecast, took)
                measured = ", ".join(f"{1e3 * seconds:.1f}" for seconds in took)
                replayed = "CUDA graphs" if graphs else "no graphs"
                lines.append(f"| {name}, {rows} x {length}, one H100, {replayed} | {measured} | {1e3 * forecast:.1f} |")
    training = json.loads((results / "e-training.json").read_text())["training bf16"]["found"]["curve"]
    took = 128 * 128 * (1 - 0.46) / median(point["tokens_per_second"] for point in training)
    graphed, eager = (of_paper("small", "h100", 1, 128, graphs=graphs) for graphs in (True, False))
    forecast = 0.9 * graphed + 0.1 * eager
    assert 1 / 1.3 < forecast / took < 1.3
    lines.append(
        f"| small, 128 x 128, one H100, training, every 10th step reports | {1e3 * took:.1f} | {1e3 * forecast:.1f} |"
    )
    for name, processes, days in (("small", 8, 3), ("base", 16, 5)):
        forecast = of_paper(name, "v100", processes, 512, graphs=True) * preset(name).optim.steps / 86_400
        assert days / 4 <= forecast <= days
        lines.append(f"| {name}, the paper's run on {processes} V100 | under {days} days | {forecast:.1f} days |")
    page = (REPOSITORY / "docs/evidence/speed.md").read_text()
    road = (REPOSITORY / "docs/guide/reproduce.md").read_text()
    for name in ("small", "base"):
        found = (
            of_paper(name, gpu, processes, 512, graphs=True) * preset(name).optim.steps / 86_400
            for gpu, processes in (("v100", 8), ("v100", 16), ("a100", 8), ("h100", 8))
        )
        (row,) = (line for line in road.splitlines() if f"SQuAD, {name}: " in line)
        assert [f"{days:.1f}" for days in found] == re.findall(r"\d\.\d", row), row
    assert not [line for line in lines if line not in page], "\n".join(lines)


def test_a_speed_that_nobody_has_published_is_not_made_up(shards_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^forecast: got a100 with fp32, for which no speed is published"):
        planned(shards_folder, tmp_path, forecast="a100", deepspeed_config="zero1_fp32").machine()
