"""Claims about ZeRO's flat groups: where parameters are in them, and what is sent between ranks."""

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pretrain.engine.partitions import Partitions, parameters_in, places_in
from pretrain.job.processes import World
from tests.pretrain.engine import partitions_worker as worker
from tests.warm import outputs, two_ranks

Figures = dict[str, dict[str, Any]]

SMALL_THINGS = 2_000
"""Bytes of headers, padding and other small messages between ranks."""

SHAPES = st.lists(st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple), min_size=1, max_size=6)


def group_of(shapes: list[tuple[int, ...]], gaps: list[int], dtype: torch.dtype = torch.float32) -> Any:
    """A flat group of parameters with these shapes and gaps of padding after them, and the parameters by name."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = torch.randn(sum(sizes) + sum(gaps), dtype=dtype)
    parameters, first = {}, 0
    for number, (shape, size, gap) in enumerate(zip(shapes, sizes, gaps, strict=True)):
        parameters[f"p{number}"] = flat[first : first + size].view(shape)
        first += size + gap
    return flat, parameters


@given(shapes=SHAPES, data=st.data())
def test_parameters_are_found_for_any_order_sizes_and_padding(
    shapes: list[tuple[int, ...]], data: st.DataObject
) -> None:
    gaps = data.draw(st.lists(st.integers(0, 3), min_size=len(shapes), max_size=len(shapes)))
    flat, parameters = group_of(shapes, gaps)
    elsewhere = {"elsewhere": torch.zeros(3)}
    names = data.draw(st.permutations(list(parameters)))
    places = places_in(flat, elsewhere | {name: parameters[name] for name in names})
    assert [place.name for place in places] == list(parameters)
    assert all(torch.equal(found, parameters[name]) for name, found in parameters_in(flat, places).items())
    whole = torch.zeros(len(flat))
    for name, stretch in parameters_in(whole, places).items():
        stretch.copy_(parameters[name])
    assert all(torch.equal(flat[place.first : place.end], whole[place.first : place.end]) for place in places)
    assert int(whole.count_nonzero()) == sum(parameter.numel() for parameter in parameters.values())


def partitions(parameters: dict[str, Tensor], flat: Tensor, master: Tensor, ranks: int = 2, rank: int = 1) -> object:
    return Partitions(parameters, [flat], [master], World(rank, ranks, rank, torch.device("cpu")))


def test_a_layout_other_than_deepspeeds_is_refused() -> None:
    flat, parameters = group_of([(3, 2), (5,)], [0, 1])
    own = flat[6:].clone()
    partitions(parameters, flat, own)
    for problem, changed in {
        "1 parameters do not lie in exactly one, first p1": (parameters | {"p1": torch.zeros(5)}, flat, own),
        "1 parameters do not lie in exactly one, first p0": (parameters | {"p0": flat[:6].view(2, 3).T}, flat, own),
        "rank 1 holds no fp32 copy of its part of group 0": (parameters, flat, flat[:6].clone()),
    }.items():
        with pytest.raises(RuntimeError, match=problem):
            partitions(*changed)
    for other in (own.double(), own[:5], own.bfloat16()):
        with pytest.raises(RuntimeError, match="no fp32 copy"):
            partitions(parameters, flat, other)


def test_masters_of_a_rounded_group_are_its_values_in_fp32_including_nan() -> None:
    flat, parameters = group_of([(3, 2), (5,)], [0, 1], torch.bfloat16)
    flat[7] = math.nan
    assert isinstance(partitions(parameters, flat, flat[6:].float()), Partitions)


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """Figures of two ranks under each DeepSpeed file."""
    result = tmp_path_factory.mktemp("partitions") / "figures.json"
    outputs(two_ranks(worker.__file__, result))
    figures: Figures = json.loads(result.read_text())
    return figures


@pytest.mark.parametrize("name", worker.FILES)
def test_the_gathered_state_is_that_of_deepspeeds_own_utilities(figures: Figures, name: str) -> None:
    assert figures[name]["as_deepspeed"]
    assert figures[name]["in_order"]


@pytest.mark.parametrize("name", worker.FILES)
def test_a_state_is_loaded_bitwise_and_every_rank_has_the_rounded_weights(figures: Figures, name: str) -> None:
    assert figures[name]["loaded"]
    assert figures[name]["rounded"] == [True, True]


@pytest.mark.parametrize("name", worker.FILES)
def test_groups_larger_than_one_collective_are_sent_in_pieces(figures: Figures, name: str) -> None:
    assert figures[name]["in_pieces"]


@pytest.mark.parametrize("name", worker.FILES)
def test_a_checkpoint_sends_each_part_once_except_the_first_ranks_own(figures: Figures, name: str) -> None:
    part = 3 * 4 * figures[name]["parameters"] / 2
    assert figures[name]["saving"] == pytest.approx([0, part], abs=SMALL_THINGS)


@pytest.mark.parametrize("name", worker.FILES)
def test_a_resume_sends_each_rank_its_part_and_the_others_rounded_weights(figures: Figures, name: str) -> None:
    part = 3 * 4 * figures[name]["parameters"] / 2
    rounded = figures[name]["bytes_per_weight"] * figures[name]["parameters"] / 2
    assert figures[name]["loading"] == pytest.approx([part + rounded, rounded], abs=SMALL_THINGS)


@pytest.mark.parametrize("name", worker.FILES)
def test_every_parameter_starts_at_a_multiple_of_16_bytes(figures: Figures, name: str) -> None:
    assert figures[name]["aligned"] == [True, True]


@pytest.mark.parametrize("layout", ["not aligned"])
def test_another_layout_trains_like_the_usual_one_which_resumes_from_it_bitwise(figures: Figures, layout: str) -> None:
    """DeepSpeed's own utilities assume the usual order and would return other parameters' values."""
    found = figures[layout]
    assert found["losses"] == pytest.approx(found["usual"], rel=1e-6)
    assert found["losses"][-1] < 0.8 * found["losses"][0]  # otherwise nothing was learned
    assert found["loaded"]
    assert found["rounded"] == [True, True]
