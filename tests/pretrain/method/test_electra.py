"""Claims about the whole forward: the losses, the gradient of each, and the sampler's initial distribution."""

import math
from collections.abc import Callable

import pytest
import torch

from pretrain.data.batches import Batch
from pretrain.method.electra import Electra, masked_states
from tests.pretrain.conftest import MASK, SHARING, SMALL_MODEL, VOCABULARY, new_model

OBJECTIVES = ("electra", "hp_loss", "hp_dist", "hp_loss_power", "oracle")
WITHOUT_HEAD = ("electra", "oracle")
PARTS = ("generator", "sampler", "discriminator")


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


@pytest.mark.parametrize(
    ("objective", "switches"),
    [
        ("electra", {}),
        *((name, {"lambda1": 3.0, "sampling_bias": bias}) for name in ("hp_loss", "hp_dist") for bias in (True, False)),
    ],
)
@pytest.mark.parametrize("gamma", [0.0, 1.0, "piecewise"])
def test_the_loss_is_the_papers_formula_by_brute_force_in_float64(
    objective: str, switches: dict[str, object], gamma: float, batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    """Every position is computed in plain Python from the two encoders' states, with the head's own matrices."""
    model = make_electra(name=objective, gamma=gamma, **switches).double().eval()
    output = model(batch)
    rows = [(b, k) for b in range(3) for k in range(2) if batch.masked_valid_BK[b, k]]
    positions = batch.masked_positions_BK
    masked_ids = batch.input_ids_BL.clone()
    for b, k in rows:
        masked_ids[b, positions[b, k]] = MASK
    states = model.generator(masked_ids, batch.attention_mask_BL, batch.token_type_ids_BL)
    embeddings = model.discriminator.embeddings.word_embeddings.weight

    replaced_ids, loss_G, sampled = batch.input_ids_BL.clone(), 0.0, {}
    for b, k in rows:
        x, h = int(batch.input_ids_BL[b, positions[b, k]]), states[b, positions[b, k]]
        logits = embeddings @ model.generator_predictions(h) + model.generator_lm_head.bias
        p_G = [math.exp(v) for v in logits.log_softmax(-1).tolist()]
        exponent = (3 if p_G[x] > 0.2 else 5) if gamma == "piecewise" else gamma
        loss_G += -((1 - p_G[x]) ** exponent) * math.log(p_G[x])
        z = [0.0] * VOCABULARY
        if objective != "electra":
            transform, scores = model.get_submodule("sampler_transform"), model.get_submodule("sampler_scores")
            z = (embeddings @ transform(h) + sum(scores.parameters())).tolist()
        weights = {
            "electra": p_G,
            "hp_loss": [p_G[t] * -math.log(sigmoid(z[t]) if t == x else 1 - sigmoid(z[t])) for t in range(7)],
            "hp_dist": [math.exp(v) for v in z],
        }[objective]
        target, total, token = float(batch.uniforms_BK[b, k]) * sum(weights), 0.0, -1
        while total <= target:
            token += 1
            total += weights[token]
        assert token == int(output.detected.draw.tokens_BK[b, k])
        replaced_ids[b, positions[b, k]] = token
        sampled[b, k] = (token, p_G[token], weights[token] / sum(weights), z[token])

    d = model.discriminator_predictions(
        model.discriminator(replaced_ids, batch.attention_mask_BL, batch.token_type_ids_BL)
    ).tolist()
    loss_D, loss_S, per_position = 0.0, 0.0, {}
    for b in range(3):
        for position in range(int(batch.attention_mask_BL[b].sum())):
            original = bool(replaced_ids[b, position] == batch.input_ids_BL[b, position])
            per_position[b, position] = -math.log(sigmoid(-d[b][position] if original else d[b][position]))
            loss_D += per_position[b, position]
    for (b, k), (_, p_G_sampled, p_S_sampled, z_sampled) in sampled.items():
        position = int(positions[b, k])
        if objective == "hp_loss":
            loss_S += (sigmoid(z_sampled) - sigmoid(-d[b][position])) ** 2
        elif objective == "hp_dist":
            loss_S += -(p_G_sampled / p_S_sampled) * per_position[b, position] * math.log(p_S_sampled)
    expected = loss_G / 5 + 3.0 * loss_S / 5 + 50.0 * loss_D / 23
    assert output.loss.item() == pytest.approx(expected, rel=1e-12)
    assert torch.equal(output.detected.replaced_BL, replaced_ids != batch.input_ids_BL), "a drawn original is original"


@pytest.mark.parametrize("objective", ["hp_loss", "hp_dist"])
def test_a_normal_start_leaves_the_head_as_drawn_and_every_other_weight_as_it_was(objective: str, batch: Batch) -> None:
    models = []
    for start in ("proposal", "normal"):
        torch.manual_seed(0)
        models.append(new_model(objective, sampling_start=start))
    proposal, normal = (model.state_dict() for model in models)
    differing = {name for name in proposal if not torch.equal(proposal[name], normal[name])}
    changed = {"hp_loss": "LayerNorm.weight", "hp_dist": "dense.weight"}[objective]
    assert differing == {f"sampler_transform.{changed}"}
    assert normal["sampler_transform.LayerNorm.weight"].eq(1).all()
    assert not normal["sampler_transform.dense.bias"].any() and not normal["sampler_scores.bias"].any()
    drawn = normal["sampler_transform.dense.weight"]
    assert not torch.equal(drawn, normal["generator_predictions.dense.weight"])
    assert 0 < drawn.abs().max() <= 2 * SMALL_MODEL.initializer_range
    for model in models:
        model(batch).loss.backward()
    head = {name for name in proposal if name.startswith("sampler_")}
    assert head <= names_with_gradient(models[1])
    # behind HP_Loss's gain of 0 nothing is learned until the gain has moved
    asleep = {name for name in head if objective == "hp_loss" and "dense" in name}
    assert head - names_with_gradient(models[0]) == asleep


@pytest.mark.parametrize("objective", ["hp_loss", "hp_dist"])
def test_without_its_bias_the_head_has_one_parameter_less_per_token(objective: str) -> None:
    sizes = [
        sum(parameter.numel() for parameter in new_model(objective, sampling_bias=bias).parameters())
        for bias in (True, False)
    ]
    assert sizes[0] - sizes[1] == VOCABULARY


def names_with_gradient(model: Electra) -> set[str]:
    return {name for name, p in model.named_parameters() if p.grad is not None and bool((p.grad != 0).any())}


def gradient_of(
    part: str, batch: Batch, make_electra: Callable[..., Electra], objective: str, **switches: object
) -> set[str]:
    """Names of the parameters that get a gradient from one of the three losses."""
    weights = {"lambda2": 1.0 if part == "discriminator" else 0.0}
    if objective not in WITHOUT_HEAD:
        weights["lambda1"] = 1.0 if part == "sampler" else 0.0
    model = make_electra(name=objective, **weights, **switches)
    output = model(batch)
    if part != "generator":  # L_G has no weight, so its gradient is subtracted
        everything = torch.autograd.grad(output.loss, list(model.parameters()), allow_unused=True)
        alone = make_electra(name=objective, **dict.fromkeys(weights, 0.0), **switches)
        generator_only = torch.autograd.grad(alone(batch).loss, list(alone.parameters()), allow_unused=True)
        names = [name for name, _ in model.named_parameters()]
        return {
            name
            for name, all_, gen in zip(names, everything, generator_only, strict=True)
            if all_ is not None and bool((all_ - (gen if gen is not None else 0)).abs().max() > 1e-9)
        }
    output.loss.backward()
    return names_with_gradient(model)


def rooms(names: set[str]) -> set[str]:
    """Parts of the model that these parameters belong to; the shared embeddings are one part."""
    return {"embeddings" if ".embeddings." in name else name.split(".")[0] for name in names}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("objective", ["hp_loss", "hp_dist"])
def test_each_loss_trains_exactly_the_intended_parameters(
    objective: str, bias: bool, batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    """Every one of these parts gets a gradient, and no other does."""
    parts = {
        "generator": {"embeddings", "generator", "generator_predictions", "generator_lm_head"},
        "sampler": {"embeddings", "generator", "sampler_transform", "sampler_scores"},
        "discriminator": {"embeddings", "discriminator", "discriminator_predictions"},
    }
    names = {name for name, _ in make_electra(name=objective, sampling_bias=bias).named_parameters()}
    zero = {name for name in names if name.endswith("key.bias")}  # softmax ignores it: its gradient is rounding
    for loss, reached in parts.items():
        expected = {name for name in names if rooms({name}) <= reached}
        assert gradient_of(loss, batch, make_electra, objective, sampling_bias=bias) - zero == expected - zero


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("sharing", ["nes", "gdes"])
def test_with_any_embedding_sharing_the_first_forward_is_bitwise_that_of_shared_embeddings(
    sharing: str, objective: str, batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    shared, model = (make_electra(name=objective, model=SHARING[name]) for name in ("es", sharing))
    own, theirs = model.state_dict(), shared.state_dict()
    others = {name for name in theirs if not name.startswith("discriminator.embeddings.")}
    assert all(torch.equal(own[name], theirs[name]) for name in others)
    ours, expected = model(batch), shared(batch)
    assert torch.equal(ours.loss, expected.loss) and torch.equal(ours.detected.d_BL, expected.detected.d_BL)
    assert torch.equal(ours.detected.draw.tokens_BK, expected.detected.draw.tokens_BK)
    added = {name for name, _ in model.named_parameters()} - {name for name, _ in shared.named_parameters()}
    assert added == {
        f"discriminator.embeddings.{name}" for name, _ in shared.generator.embeddings.named_parameters()
    }  # each once


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("sharing", ["nes", "gdes"])
def test_without_shared_embeddings_each_loss_trains_only_its_own_encoders(
    sharing: str, objective: str, batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    names = {name for name, _ in make_electra(name=objective).named_parameters()}
    tables = {name for name in names if ".embeddings." in name}
    assert tables and all(name.startswith("generator.") for name in tables)
    zero = {name for name in names if name.endswith("key.bias")}  # softmax ignores it: its gradient is rounding
    discriminators = {name for name in names if name.startswith("discriminator")}
    discriminators |= {name.replace("generator.", "discriminator.", 1) for name in tables}
    reached = {part: gradient_of(part, batch, make_electra, objective, model=SHARING[sharing]) for part in PARTS}
    assert reached["discriminator"] - zero == discriminators - zero
    assert tables <= reached["generator"] and not reached["generator"] & discriminators
    assert not reached["sampler"] & discriminators
    assert objective in WITHOUT_HEAD or tables <= reached["sampler"]


@pytest.mark.parametrize("objective", ["hp_loss", "hp_dist"])
def test_with_its_input_detached_the_sampler_loss_trains_only_the_sampling_head_and_its_bias(
    objective: str, batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name=objective)
    head = {name for name, _ in model.named_parameters() if name.startswith("sampler")}
    assert gradient_of("sampler", batch, make_electra, objective, detach_sampler_input=True) == head
    generator = {"embeddings", "generator", "generator_predictions", "generator_lm_head"}
    assert rooms(gradient_of("generator", batch, make_electra, objective, detach_sampler_input=True)) == generator


@pytest.mark.parametrize(
    "switches",
    [
        {"name": "hp_loss", "importance_weighting": True},
        {"name": "hp_dist", "mixture": 0.1, "importance_weighting": True},
        {"name": "electra", "temperature": 2.0, "importance_weighting": True},
        {"name": "hp_loss", "forbid_original": True, "mask_keep_fraction": 0.5},
    ],
    ids=lambda switches: " ".join(map(str, switches)),
)
def test_no_switch_lets_the_discriminators_loss_reach_the_generator_or_the_sampler(
    switches: dict[str, object], batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    objective, others = str(switches["name"]), {key: value for key, value in switches.items() if key != "name"}
    reached = rooms(gradient_of("discriminator", batch, make_electra, objective, **others))
    assert reached == {"embeddings", "discriminator", "discriminator_predictions"}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_loss_of_a_step_does_not_depend_on_how_it_is_split(
    objective: str, batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name=objective).double().eval()
    whole = model(batch)
    parts = []
    for row in range(3):
        tensors = [part[row : row + 1] if isinstance(part, torch.Tensor) else part for part in batch]
        parts.append(model(Batch._make(tensors)))
    total = sum(part.loss for part in parts)
    assert total.item() == pytest.approx(whole.loss.item(), rel=1e-12)
    assert_same_gradient(total, whole.loss, model)


def assert_same_gradient(one: torch.Tensor, other: torch.Tensor, model: Electra) -> None:
    gradients = [torch.autograd.grad(loss, list(model.parameters()), allow_unused=True) for loss in (one, other)]
    for ours, theirs in zip(*gradients, strict=True):
        assert ours is theirs is None or torch.allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("objective", (*OBJECTIVES, "mlm"))
def test_padding_changes_nothing(objective: str, batch: Batch, make_electra: Callable[..., Electra]) -> None:
    model = make_electra(name=objective).double().eval()
    padded = [
        torch.nn.functional.pad(part, (0, 4)) if name.endswith("BL") else part for name, part in batch._asdict().items()
    ]
    ours, plain = model(Batch._make(padded)).loss, model(batch).loss
    assert ours.item() == pytest.approx(plain.item(), rel=1e-12)
    assert_same_gradient(ours, plain, model)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_free_sampling_in_fp32_differs_from_float64_only_by_counted_flips(
    objective: str, batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    """A draw flips if its uniform is within rounding of a step of the CDF; rows without a flip agree."""
    rows = 2000
    many = [part[:1].expand(rows, *part.shape[1:]) if isinstance(part, torch.Tensor) else part for part in batch]
    uniforms = torch.rand(rows, 2, generator=torch.Generator().manual_seed(0))
    large = Batch._make(many)._replace(uniforms_BK=uniforms)
    model = make_electra(name=objective).eval()
    single = model(large)
    exact = model.double()(large)
    same = (single.detected.draw.tokens_BK == exact.detected.draw.tokens_BK).all(1)
    assert (~same).sum() <= 0.01 * rows
    ours, theirs = (output.detected.discriminator_loss_BL[same].double() for output in (single, exact))
    assert torch.allclose(ours, theirs, atol=1e-4)


def test_kept_positions_show_their_token_and_are_still_predicted(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name="electra", mask_keep_fraction=0.5).eval()
    kept = (batch.keep_uniforms_BK < 0.5) & batch.masked_valid_BK
    assert 0 < kept.sum() < batch.masked_valid_BK.sum()
    ids = batch.input_ids_BL.clone()
    for row, slot in (batch.masked_valid_BK & ~kept).nonzero().tolist():
        ids[row, batch.masked_positions_BK[row, slot]] = MASK
    seen = model.generator(ids, batch.attention_mask_BL, batch.token_type_ids_BL)
    states = masked_states(model.generator, batch, MASK, keep_fraction=0.5)
    for row, slot in batch.masked_valid_BK.nonzero().tolist():
        assert torch.equal(states[row, slot], seen[row, batch.masked_positions_BK[row, slot]])
    valid = batch.masked_valid_BK
    plain = make_electra(name="electra").eval()(batch)
    assert not torch.equal(model(batch).log_p_original_BK[valid], plain.log_p_original_BK[valid])


def test_electra_has_no_sampling_head_and_one_distribution_to_draw_from(
    batch: Batch, make_electra: Callable[..., Electra]
) -> None:
    model = make_electra(name="electra")
    assert not [name for name, _ in model.named_parameters() if name.startswith("sampler")]
    assert not model(batch).detected.sampler_loss_BK.any()
    assert list(model.outputs(batch)) == ["p_G"]
