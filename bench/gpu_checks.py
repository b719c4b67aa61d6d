"""The checks of `bench/gpu.py`: fast paths against fp32 references.

The checks are independent: a failure is recorded with its reason, and the next check runs. Where losses are compared,
replacements depend only on the uniforms. Otherwise rounding would flip some draws, and the discriminator would see
different tokens.
"""

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import pretrain.model.distribution
from bench.gpu_items import SkippedError, run_items
from bench.gpu_setting import Plainly, Setting, new_batch, new_model, setting
from bench.matrix_rate import DTYPES
from bench.models import CONFIGS, new_engine
from pretrain.data.batches import Batch
from pretrain.engine.engine import Engine
from pretrain.engine.optim import parameter_groups
from pretrain.engine.plain import squared_norm
from pretrain.method.electra import Electra
from pretrain.model import ops
from pretrain.model.distribution import BLOCK, draw_in_blocks, inverse_cdf
from pretrain.training.models import compile_layers

OBJECTIVES = ("electra", "hp_loss", "hp_dist")
LEARNING_RATE = 1e-3  # large enough to change bf16 weights near 0.1, whose spacing is 0.0005
ROUNDINGS = 16
"""Tolerance after a dozen layers, in rounding errors of the precision (fp32: of TF32, which may be on)."""
LOSS_SCALE = 2.0**10
ENGINE_STEPS, STEPS_WITHOUT_SYNC = 4, 100
DRAWS = 200_000
MISSED = 2e-6
"""Tolerance for rounded fp32 sums: distance of a uniform from its token's interval, as a share of the total weight."""


def run_checks(device: str, product: Path) -> int:
    """Runs the checks that have not passed yet; returns 1 if one failed."""
    where = setting(device)
    if device == "cpu" and find_spec("deepspeed"):
        from bench.gpu_declared import declare

        declare(asynchronous=True)
    gentle_engine(where, new_model(where), "zero0_fp32")  # an engine's start chooses the fast operations
    return run_items(dict(all_checks(where)), product)


def all_checks(where: Setting) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    """Yields the checks by name; those that compile longest come last: fp32's, and compiled layers."""
    checks = dict(checks_by_kind(where))
    yield from ((name, check) for name, check in checks.items() if "fp32" not in name and "compiled" not in name)
    yield from ((name, check) for name, check in checks.items() if "fp32" in name)
    yield from ((name, check) for name, check in checks.items() if "compiled" in name)


def checks_by_kind(where: Setting) -> Iterator[tuple[str, Callable[[], dict[str, float]]]]:
    yield "attention", partial(check_attention, where)
    yield "sampling, every draw", partial(check_draws, where)
    yield "sampling, distribution", partial(check_distribution, where)
    for name, dtype in DTYPES.items():
        yield f"attention {name}", partial(check_attention, where, dtype)
        yield f"dropout {name}", partial(check_dropout, where, dtype)
        yield f"norm of gradients {name}", partial(check_norm, where, dtype)
    for objective in OBJECTIVES:
        for name in ("bf16", "fp16"):
            yield f"{objective} {name}", partial(check_precision, where, objective, DTYPES[name])
        for name, dtype in DTYPES.items():
            yield f"{objective} {name} against the CPU", partial(check_device, where, objective, dtype)
        for config in ("zero0_fp32", "zero1_fp32", "zero1_bf16", "zero1_fp16"):
            yield f"engine {config} {objective}", partial(check_engine, where, config, objective)
        yield f"{objective} compiled", partial(check_compiled, where, objective)
    yield "no synchronisation", partial(check_no_sync, where)


def within(figures: dict[str, float], limit: float) -> dict[str, float]:
    """The figures, rounded, after asserting that each is at most `limit`.

    Raises:
        AssertionError: a figure exceeds the limit.
    """
    assert all(figure <= limit for figure in figures.values()), f"{figures}, at most {limit:.2g}"
    return {name: float(f"{figure:.2g}") for name, figure in figures.items()}


def off(ours: Tensor, reference: Tensor) -> float:
    """Norm of the difference, relative to the reference's norm."""
    return float((ours.double() - reference.double()).norm() / reference.double().norm())


def roundings(dtype: torch.dtype) -> float:
    """The relative difference allowed for a precision."""
    return ROUNDINGS * (2.0**-11 if dtype == torch.float32 else torch.finfo(dtype).eps)


class Forced:
    """Inside the `with` block, replacements depend only on the uniforms."""

    def __enter__(self) -> None:
        pretrain.model.distribution.draw_in_blocks = forced_draw

    def __exit__(self, *error: object) -> None:
        pretrain.model.distribution.draw_in_blocks = draw_in_blocks


def forced_draw(
    sum_XN: Tensor, block: Callable[[Tensor], Tensor], size: int, uniform_X: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    token_X1 = (uniform_X[..., None] * size).long()
    weight_X1 = block(token_X1 // BLOCK).gather(-1, token_X1 % BLOCK)
    return token_X1.squeeze(-1), sum_XN.sum(-1), weight_X1.squeeze(-1)


def loss_and_gradient(model: nn.Module, batch: Batch, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Loss and gradient of one forward and backward; the gradient is one flat fp32 tensor."""
    with Forced():
        loss = model(batch).loss
        (scale * loss).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return loss.detach().float(), torch.cat([gradient.float().flatten() for gradient in gradients]) / scale


def check_precision(where: Setting, objective: str, dtype: torch.dtype) -> dict[str, float]:
    """Loss and gradient in half precision against fp32, both from the same rounded weights."""
    model, reference = (new_model(where, objective).to(dtype) for _ in range(2))
    loss, gradient = loss_and_gradient(model, new_batch(where), LOSS_SCALE if dtype == torch.float16 else 1.0)
    with Plainly():
        expected_loss, expected = loss_and_gradient(reference.float(), new_batch(where))
    return within({"loss": off(loss, expected_loss), "gradient": off(gradient, expected)}, roundings(dtype))


def check_device(where: Setting, objective: str, dtype: torch.dtype) -> dict[str, float]:
    """Loss and gradient on this device against the CPU in fp32, both from the same rounded weights."""
    if where.device.type == "cpu":
        raise SkippedError("this is the CPU")
    model, reference = (new_model(where, objective).to(dtype) for _ in range(2))
    loss, gradient = loss_and_gradient(model, new_batch(where), LOSS_SCALE if dtype == torch.float16 else 1.0)
    cpu = torch.device("cpu")
    with Plainly():
        expected_loss, expected = loss_and_gradient(reference.to(cpu).float(), new_batch(where).to(cpu))
    figures = {"loss": off(loss.cpu(), expected_loss), "gradient": off(gradient.cpu(), expected)}
    return within(figures, roundings(dtype))


def check_compiled(where: Setting, objective: str) -> dict[str, float]:
    """Loss and gradient with compiled layers (`--compile`) against eager mode, in fp32."""
    if where.device.type == "cpu":
        raise SkippedError("compiling for a CPU is slow and gains nothing")
    compiled = new_model(where, objective)
    compile_layers(compiled)
    loss, gradient = loss_and_gradient(compiled, new_batch(where))
    with Plainly():
        expected_loss, expected = loss_and_gradient(new_model(where, objective), new_batch(where))
    return within({"loss": off(loss, expected_loss), "gradient": off(gradient, expected)}, roundings(torch.float32))


def check_dropout(where: Setting, dtype: torch.dtype) -> dict[str, float]:
    """Forward and backward draw the same dropout, in attention and before LayerNorm; half of the values are dropped.

    Attention's output is linear in the values: its square is their product with their gradient. Before LayerNorm, what
    was dropped has no gradient.
    """
    torch.manual_seed(0)
    on = {"device": where.device, "dtype": dtype}
    query, key, value = torch.randn(3, 2, 4, where.length, 64, **on).requires_grad_().unbind()
    visible_BL = torch.ones(2, where.length, dtype=torch.bool, device=where.device)
    output = ops.attend(query, key, value, ops.attention_bias(visible_BL, None, 1, 64, dtype), 0.5)
    (gradient,) = torch.autograd.grad(output, value, output.detach())
    square = output.double().square().sum()
    layer = ops.LayerNorm(256, device=where.device, dtype=dtype).train()
    values, residual = torch.randn(2, 500, 256, **on).unbind()
    normal = layer(values.requires_grad_(), residual, 0.5)
    (slope,) = torch.autograd.grad(normal, values, torch.randn_like(normal))
    total = residual.double() + 2 * values.double() * (slope != 0)
    figures = {
        "attention": abs(float((value.double() * gradient.double()).sum().detach() / square.detach()) - 1),
        "layer_norm": off(normal, torch.nn.functional.layer_norm(total, (256,), eps=layer.eps)),
        "share": abs(float((slope != 0).double().mean()) - 0.5),
    }
    return within(figures, roundings(dtype))


def check_attention(where: Setting, dtype: torch.dtype | None = None) -> dict[str, float]:
    """Attention with a learned bias and padding: outputs and the bias table's gradient.

    With `dtype`, compares whichever kernel PyTorch chooses with the plain formula in fp64. Without it, compares the
    plain formula in fp64 on this device with the CPU.
    """
    batch = new_batch(where)
    visible_BL = batch.attention_mask_BL.clone()
    visible_BL[0, where.length // 2 :] = False
    batch = batch._replace(attention_mask_BL=visible_BL)
    results = []
    for device, precision in ((where.device, dtype), (where.device if dtype else torch.device("cpu"), None)):
        encoder = new_model(where).discriminator.to(device, dtype or torch.float64)
        on = batch.to(device)
        if precision is None:
            encoder = encoder.double()
        backends = [SDPBackend.MATH] if precision is None else list(SDPBackend.__members__.values())[1:]
        with sdpa_kernel(backends), Plainly() if precision is None else nullcontext():
            hidden_XH = encoder(on.input_ids_BL, on.attention_mask_BL, on.token_type_ids_BL)[on.attention_mask_BL]
            loss = (hidden_XH * torch.linspace(-1, 1, hidden_XH.shape[-1]).to(hidden_XH)).mean()
            (loss * LOSS_SCALE).backward()
        table = encoder.encoder.relative_attention_bias.weight.grad
        results.append((hidden_XH.detach().cpu(), table.cpu()))
    (ours, our_table), (expected, expected_table) = results
    figures = {"outputs": off(ours, expected), "bias_gradient": off(our_table, expected_table)}
    return within(figures, roundings(dtype) if dtype else 1e-9)


def random_weights(where: Setting) -> tuple[Tensor, Tensor]:
    """Weights [rows, vocabulary] distributed as a trained model's, and uniforms of at most 24 bits."""
    random = torch.Generator().manual_seed(2)
    rows = 4096 if where.device.type == "cuda" else 512
    uniform_X = torch.randint(2**23, (rows,), generator=random).mul(2).add(1).float() / 2**24
    return (torch.randn(rows, where.vocabulary, generator=random) * 3).exp(), uniform_X


def check_draws(where: Setting) -> dict[str, float]:
    """Every uniform draws the token in whose interval of the total weight it lies, up to rounding of the sums."""
    weights_XV, uniform_X = random_weights(where)
    tokens_X = inverse_cdf(weights_XV.to(where.device), uniform_X.to(where.device))[0].cpu()
    return within({"missed": float(missed_by(weights_XV, uniform_X, tokens_X).max())}, MISSED)


def missed_by(weights_XV: Tensor, uniform_X: Tensor, tokens_X: Tensor) -> Tensor:
    """Distance of each uniform from its token's interval, as a share of the total weight, in float64; 0 inside."""
    p_XV = weights_XV.double() / weights_XV.sum(-1, keepdim=True, dtype=torch.float64)
    end_X = p_XV.cumsum(-1).gather(-1, tokens_X[:, None]).squeeze(-1)
    start_X = end_X - p_XV.gather(-1, tokens_X[:, None]).squeeze(-1)
    return torch.maximum(start_X - uniform_X, uniform_X - end_X).clamp(min=0)


def check_distribution(where: Setting) -> dict[str, float]:
    """Many draws from one row: chi-squared divided by its degrees of freedom, expected to be about 1."""
    row_V = random_weights(where)[0][0, :50].to(where.device)
    uniforms_X = torch.rand(DRAWS, generator=torch.Generator().manual_seed(3)).to(where.device)
    tokens_X = inverse_cdf(row_V.expand(DRAWS, -1).clone(), uniforms_X)[0]
    expected_V = row_V.double() / row_V.double().sum() * DRAWS
    enough_V = expected_V >= 5
    counted_V = tokens_X.bincount(minlength=len(row_V))
    chi = ((counted_V - expected_V).square() / expected_V)[enough_V].sum() / (enough_V.sum() - 1)
    return within({"chi_squared": float(chi)}, 2.0)


def check_norm(where: Setting, dtype: torch.dtype) -> dict[str, float]:
    """Gradient norm for a model's shapes on this device against float64 on the CPU; one infinity makes it infinite."""
    random = torch.Generator().manual_seed(4)
    values = [torch.randn(p.shape, generator=random).to(dtype) for p in new_model(where).parameters()]
    there = [value.to(where.device) for value in values]
    expected = torch.stack([value.double().square().sum() for value in values]).sum()
    found = squared_norm(there).cpu()
    there[-1].view(-1)[-1] = torch.inf
    assert squared_norm(there).isinf()
    return within({"norm": off(found, expected)}, 1e-9)


def check_engine(where: Setting, config: str, objective: str) -> dict[str, float]:
    """Losses of a few steps under DeepSpeed against plain PyTorch in fp32."""
    if "zero0" not in config:
        require_deepspeed()
    if where.device.type == "cuda" and "bf16" in config and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise SkippedError("this GPU has no bf16")
    engine = gentle_engine(where, new_model(where, objective), config)
    model = new_model(where, objective)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.01), lr=LEARNING_RATE, eps=1e-6)
    batch, ours, expected = new_batch(where), [], []
    with Forced():
        for _ in range(ENGINE_STEPS):
            ours.append(engine_step(engine, batch))
            with Plainly():
                loss = model(batch).loss
                loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), where.run.optim.gradient_clipping)
            optimizer.step()
            optimizer.zero_grad()
            expected.append(loss.detach())
    return within({"losses": off(torch.stack(ours).float(), torch.stack(expected))}, roundings(engine.dtype))


def require_deepspeed() -> None:
    """Skips the check without DeepSpeed."""
    if find_spec("deepspeed") is None:
        raise SkippedError("needs deepspeed, not installed here")


def gentle_engine(where: Setting, model: Electra, name: str) -> Engine:
    """An engine for a file of `ds_configs/`, with a loss scale low enough not to overflow at first."""
    config = json.loads((CONFIGS / f"{name}.json").read_text())
    if "fp16" in config:
        config["fp16"]["initial_scale_power"] = 10
    return new_engine(model, where.run, config, where.batch_size, where.world)


def engine_step(engine: Engine, batch: Batch) -> Tensor:
    loss = engine.forward(batch).loss
    engine.backward(loss)
    engine.update(LEARNING_RATE)
    return loss.detach()


def check_no_sync(where: Setting) -> dict[str, float]:
    """Forward and backward never synchronize host and device; counts the waits in DeepSpeed's update."""
    if where.device.type == "cpu":
        raise SkippedError("a CPU runs synchronously")
    require_deepspeed()
    engine, batch = gentle_engine(where, new_model(where), "zero1_bf16"), new_batch(where)
    for _ in range(3):
        engine_step(engine, batch)
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        try:
            for _ in range(STEPS_WITHOUT_SYNC):
                torch.cuda.set_sync_debug_mode("error")
                engine.backward(engine.forward(batch).loss)
                torch.cuda.set_sync_debug_mode("warn")
                engine.update(LEARNING_RATE)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return {"waits_in_an_update": len(waits) / STEPS_WITHOUT_SYNC}
