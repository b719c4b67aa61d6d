"""Scores sentences, token by token, with pre-trained models and without fine-tuning.

- `discriminator`: the discriminator's log P(original);
- `generator`: log p_G of each token, masked in turn (Salazar et al., ACL 2020), as of any masked language model;
- `likelihood`: log p(x) of each token x given the others, in closed form from both models (`likelihood.py`).

Shape letters: B sentences, L length, T tokens between [CLS] and [SEP], H hidden size, V vocabulary.
"""

import sys
from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from electra_sampler.foundation.command_line import print_warning
from electra_sampler.foundation.config import ConfigError, shown
from finetune.likelihood import P_G, Draws, Proposal, draws_of, log_likelihood, proposal_of
from pretrain.huggingface.stored import LEARNED, SAMPLING, Sampling, Stored, family, read_stored
from pretrain.model.kernels import cpu_ops
from pretrain.runs.models import find_donors, is_run

Kind = Literal["discriminator", "generator", "likelihood"]
"""Kinds of score, in nats per token."""
TOKENS_PER_BATCH = 8192
"""Tokens per batch; a base model then needs up to a gigabyte for activations and scores."""
ELEMENTS = 2**17
"""Scores at a time in float64: 1 MB per term, so that a core's cache holds several, which halves the time."""


class Scorer(NamedTuple):
    """The models of a folder and the scores that they give."""

    name: str
    discriminator: Any
    """`nn.ModuleDict` of encoder and head, or `None`."""
    generator: Any
    """`nn.ModuleDict` of encoder, head and sampling head, if any, or `None`."""
    sampling: Sampling | None
    """How replacements were drawn; needed for the likelihood."""
    tokenizer: Any
    kinds: tuple[Kind, ...]

    def scores(self, sentences: Iterable[str]) -> dict[str, dict[Kind, np.ndarray]]:
        """Returns each sentence's scores by kind, in nats, float64 [T]; sentences with equal tokens have equal scores.

        Raises:
            ConfigError: a sentence has more tokens than a model has positions.
        """
        tokens = {sentence: self.ids_of(sentence) for sentence in sentences}
        scores: dict[tuple[int, ...], dict[Kind, np.ndarray]] = {}
        batches = [*batches_by_length({*tokens.values()})]
        for batch in tqdm(batches, desc=self.name, unit=" batches", disable=None, leave=False):
            found = self.score(torch.tensor(batch, device=self.device))
            for row, ids in enumerate(batch):
                scores[ids] = {kind: score_BT[row].cpu().numpy() for kind, score_BT in found.items()}
        return {sentence: scores[ids] for sentence, ids in tokens.items()}

    def ids_of(self, sentence: str) -> tuple[int, ...]:
        """Returns the ids of a sentence's tokens, with [CLS] and [SEP].

        Raises:
            ConfigError: there are more than a model has positions.
        """
        ids = tuple(self.tokenizer(sentence, verbose=False)["input_ids"])
        positions = min(model["electra"].config.max_position_embeddings for model in self.models)
        if len(ids) > positions:
            raise ConfigError(
                f"sentence: {shown(sentence)} has {len(ids)} tokens; expected at most {positions}, the positions of"
                f" {self.name}; shorten it"
            )
        return ids

    @property
    def models(self) -> list[Any]:
        return [model for model in (self.discriminator, self.generator) if model is not None]

    @property
    def device(self) -> torch.device:
        return next(self.models[0].parameters()).device

    @torch.inference_mode()
    def score(self, ids_BL: Tensor) -> dict[Kind, Tensor]:
        """Returns the scores [B, T] by kind of rows of ids [B, L] without padding."""
        if ids_BL.shape[1] == 2:
            return dict.fromkeys(self.kinds, torch.zeros(len(ids_BL), 0, dtype=torch.float64))
        found: dict[Kind, Tensor] = {}
        if self.discriminator is not None:
            d_BT = self.discriminator["discriminator_predictions"](hidden(self.discriminator, ids_BL))[:, 1:-1].double()
            found["discriminator"] = F.logsigmoid(-d_BT)
        if self.generator is not None:
            draws = self.draws(ids_BL)
            found["generator"] = found["likelihood"] = draws.log_p_G_X
            if self.discriminator is not None and self.sampling is not None:
                found["likelihood"] = log_likelihood(d_BT, draws, self.sampling.mask_share)
        return {kind: found[kind] for kind in self.kinds}

    def draws(self, ids_BL: Tensor) -> Draws:
        """Returns the probabilities of the tokens, each [B, T], with one token at a time masked."""
        sampling = self.sampling or Sampling(objective=P_G, mask_share=0.5)  # no discriminator: log p_G alone is used
        columns = []
        for position in range(1, ids_BL.shape[1] - 1):
            scores, ids_B = self.masked_scores(ids_BL, position), ids_BL[:, position]
            rows, parts = max(1, ELEMENTS // scores[0].shape[1]), []
            for part_B, *scores_BV in zip(*(each.split(rows) for each in (ids_B, *scores)), strict=True):
                log_p_G_BV, *head_BV = map(Tensor.double, scores_BV)
                parts.append(draws_of(log_p_G_BV.log_softmax(-1), part_B, sampling, *head_BV))
            columns.append(Draws(*map(torch.cat, zip(*parts, strict=True))))
        return Draws(*(torch.stack(column, 1) for column in zip(*columns, strict=True)))

    def masked_scores(self, ids_BL: Tensor, position: int) -> list[Tensor]:
        """Returns the logits [B, V] of the generator, and of its sampling head if any, at a position that it masks."""
        masked_BL = ids_BL.clone()
        masked_BL[:, position] = self.tokenizer.mask_token_id
        hidden_BH = hidden(self.generator, masked_BL)[:, position]
        modules = [*self.generator.values()][1:]  # a transform and an output matrix, then perhaps the sampling head's
        return [matrix(transform(hidden_BH)) for transform, matrix in zip(modules[::2], modules[1::2], strict=True)]

    @torch.inference_mode()
    def propose(self, ids: tuple[int, ...], position: int) -> Proposal:
        """Returns what the generator and its sampling head, if any, propose for the token at a position."""
        ids_BL = torch.tensor([ids], device=self.device)
        log_p_G_V, *head_V = (score_BV[0].double() for score_BV in self.masked_scores(ids_BL, position))
        return proposal_of(log_p_G_V.log_softmax(-1), ids_BL[0, position], self.sampling, *head_V)


def hidden(model: nn.ModuleDict, ids_BL: Tensor) -> Tensor:
    return model["electra"](ids_BL, torch.ones_like(ids_BL), torch.zeros_like(ids_BL))


def batches_by_length(sequences: Iterable[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Yields batches of sequences of equal length, so that none is padded."""
    for length, group in groupby(sorted(sequences, key=lambda one: (len(one), one)), key=len):
        alike, size = list(group), max(1, TOKENS_PER_BATCH // length)
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def open_scorer(
    name: str,
    kinds: Collection[Kind] = (),
    generator: str | None = None,
    mask_share: float | None = None,
    random_weights: bool = False,
) -> Scorer:
    """Opens the models of a run, of an export, or of a Hugging Face folder with its `generator`, on the GPU if any.

    It gives these `kinds` of score, by default all that the models can give. `mask_share` is for a discriminator whose
    folder does not record it. A masked language model's likelihood is its generator's score. With `random_weights`, the
    models are untrained.

    Raises:
        ConfigError: there is no such model or no generator that fits, or the share of masked tokens is unknown.
    """
    if not torch.cuda.is_available():
        cpu_ops.use()
    models, tokenizer = open_models(name, generator)
    main, kinds = models[-1], kinds_of(models, kinds, mask_share)
    detects = main.role == "discriminator"
    tokenizer.split_special_tokens = True  # "[MASK]" in a sentence is text, as in pre-training
    sampling = sampling_of(main, mask_share) if detects and "likelihood" in kinds else None
    discriminator = built(main, random_weights) if detects and {*kinds} != {"generator"} else None
    predictor = None
    if {*kinds} != {"discriminator"}:
        predictor = built(models[0], random_weights, sampling is not None and sampling.objective in LEARNED)
        if sampling and sampling.objective != P_G and "sampler_transform" not in predictor:
            print_warning(
                f"{name} was trained with {sampling.objective}, whose sampler {models[0].folder} does not hold: its"
                " likelihood assumes replacements drawn from p_G",
                to=sys.stderr,
            )
    label = f"{name} (random weights)" if random_weights else name
    return Scorer(label, discriminator, predictor, sampling, tokenizer, kinds)


def open_models(name: str, generator: str | None) -> tuple[tuple[Stored, ...], Any]:
    """Returns the models of a run or a folder, if there are two the generator first, and their tokenizer.

    Raises:
        ConfigError: there is no such model, or no generator that fits.
    """
    models = find_donors((name,)) if is_run((name,)) else (read_stored(name),)
    if generator or len(models) == 1:
        models = family(models[-1], generator)
    *others, tokenizer = (model.load_tokenizer() for model in models)
    if any(other.get_vocab() != tokenizer.get_vocab() for other in others):
        raise ConfigError(
            f"generator: {models[0].folder} is not a masked language model with the vocabulary of {name}; name one"
        )
    return models, tokenizer


def kinds_of(models: tuple[Stored, ...], asked: Collection[Kind], mask_share: float | None) -> tuple[Kind, ...]:
    """Returns the kinds of score that are `asked` for and that the models can give, by default all of these.

    Raises:
        ConfigError: they need a generator, and there is none.
    """
    main = models[-1]
    if main.role == "generator":
        return tuple(kind for kind in asked if kind != "discriminator") or ("generator",)
    if len(models) > 1:
        recorded = mask_share is not None or SAMPLING in main.settings
        return tuple(asked) or (get_args(Kind) if recorded else ("discriminator", "generator"))
    if asked and ("discriminator" not in asked or "likelihood" in asked):
        raise ConfigError(
            f"score: got {' '.join(asked)}, but {main.folder} has no generator inside; add --generator FOLDER"
            " or --score discriminator"
        )
    return ("discriminator",)


def built(model: Stored, random_weights: bool, sampling_head: bool = False) -> Any:
    torch.manual_seed(0)  # untrained weights are the same in every process
    return model.build(random_weights, sampling_head).eval().to("cuda" if torch.cuda.is_available() else "cpu")


def sampling_of(discriminator: Stored, mask_share: float | None) -> Sampling:
    """Returns how replacements were drawn for this discriminator; unless it records that, from p_G.

    Raises:
        ConfigError: the share of masked tokens is neither recorded nor given.
    """
    recorded, folder = discriminator.settings.get(SAMPLING), discriminator.folder
    if recorded is not None:
        return Sampling.from_values(recorded, f"model: {folder / 'config.json'}: {SAMPLING}")
    if mask_share is None:
        raise ConfigError(
            f"mask_share: {folder} does not record the share of tokens that were masked in training; add --mask_share,"
            " 0.1275 for Google's"
        )
    return Sampling(objective=P_G, mask_share=mask_share)
