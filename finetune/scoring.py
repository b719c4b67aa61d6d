"""Scores sentences, token by token, with pre-trained models and without fine-tuning.

- `discriminator`: the discriminator's log P(original);
- `generator`: log p_G of each token, masked in turn (Salazar et al., ACL 2020), as of any masked language model;
- `likelihood`: log p(x) of each token x given the others, in closed form from both models. Of m, the share of masked
  positions, q_o and q_r, the probabilities that the sampler draws x where x or another token is the original, and the
  discriminator's logit d,

      P(x is shown and original) = p(x) (1 - m + m q_o),   P(x is shown and replaced) = (1 - p(x)) m q_r,

  and exp(d) is the second over the first, so p(x) = m q_r e^-d / (1 - m + m q_o + m q_r e^-d). For small q this is
  Electric's score, log q - d + log m/(1 - m) (Clark et al., EMNLP 2020).

Shape letters: B sentences, L length, T tokens between [CLS] and [SEP], H hidden size, V vocabulary, X any leading
dimensions.
"""

import math
import re
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
from finetune.running.model_folder import load_tokenizer
from pretrain.huggingface.stored import SAMPLING, Sampling, Stored, family, read_stored
from pretrain.model.kernels import cpu_ops
from pretrain.runs.models import find_donors, is_run

Kind = Literal["discriminator", "generator", "likelihood"]
"""Kinds of score, in nats per token."""
TOKENS_PER_BATCH = 8192
"""Tokens per batch; a base model then needs up to a gigabyte for activations and scores."""
ELEMENTS = 2**17
"""Scores at a time in float64: 1 MB per term, so that a core's cache holds several, which halves the time."""
P_G = "electra"
"""The objective whose replacements are drawn from p_G."""


class Draws(NamedTuple):
    """Log-probabilities of the shown tokens x, [X], at masked positions."""

    log_p_G_X: Tensor
    log_q_original_X: Tensor
    """log q(x) where x is the original."""
    log_q_replacement_X: Tensor
    """log q(x) where another token is, on average over p_G."""


def log_likelihood(d_X: Tensor, draws: Draws, mask_share: float) -> Tensor:
    """Returns log p(x) of the shown tokens, [X]; it is finite for every finite d and log q."""
    log_replaced_X = math.log(mask_share) + draws.log_q_replacement_X - d_X
    return F.logsigmoid(log_replaced_X - torch.log1p(mask_share * draws.log_q_original_X.expm1()))


def draws_of(log_p_G_XV: Tensor, ids_X: Tensor, sampling: Sampling, head_XV: Tensor | None = None) -> Draws:
    """Returns the probabilities of the tokens `ids` under a sampler with these scores of its sampling head, if any.

    Where x is drawn in proportion to a weight that depends on whether it is the original (HP_Loss; `forbid_original`),
    q(x) also depends on the unknown original y, through the sum of the weights; we average over y != x by p_G, which
    is exact if p_G is.
    """
    x_X1 = ids_X[..., None]
    log_p_G_X = log_p_G_XV.gather(-1, x_X1)[..., 0]
    from_p_G = head_XV is None and sampling.temperature == 1 and not sampling.forbid_original
    if from_p_G or sampling.importance_weighting:  # weights p_G / q teach what draws from p_G would
        return Draws(log_p_G_X, log_p_G_X, log_p_G_X)
    weight_XV, original_XV = log_weights(log_p_G_XV, sampling, head_XV)
    if original_XV is None:
        log_q_X = weight_XV.gather(-1, x_X1)[..., 0] - weight_XV.logsumexp(-1)
        return Draws(log_p_G_X, log_q_X, log_q_X)
    total_XV = torch.logaddexp(log_sum_of_others(weight_XV), original_XV)  # by the original
    terms = (log_p_G_XV - total_XV, log_p_G_XV)
    of_others_X, p_others_X = (term_XV.scatter(-1, x_X1, -torch.inf).logsumexp(-1) for term_XV in terms)
    log_q_original_X = (original_XV - total_XV).gather(-1, x_X1)[..., 0]
    return Draws(log_p_G_X, log_q_original_X, weight_XV.gather(-1, x_X1)[..., 0] + of_others_X - p_others_X)


def log_weights(log_p_G_XV: Tensor, sampling: Sampling, head_XV: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Returns the logs of what replacements are drawn in proportion to, and of the original's weight if it has its own,
    both [X, V].
    """
    weight_XV = log_p_G_XV / sampling.temperature
    original_XV = None
    if head_XV is not None and sampling.objective == "hp_loss":
        original_XV = weight_XV + F.softplus(-head_XV).log()
        weight_XV = weight_XV + F.softplus(head_XV).log()
    elif head_XV is not None:
        p_S_XV = (head_XV / sampling.temperature).softmax(-1)
        weight_XV = (p_S_XV + sampling.mixture * (log_p_G_XV.exp() - p_S_XV)).log()
    if sampling.forbid_original:
        original_XV = torch.full_like(weight_XV, -torch.inf)
    return weight_XV, original_XV


def log_sum_of_others(log_XV: Tensor) -> Tensor:
    """Returns log sum_{v != x} exp(log_v) for every x, [X, V], without cancellation."""
    top_X1, total_X1 = log_XV.argmax(-1, keepdim=True), log_XV.logsumexp(-1, keepdim=True)
    without_top_X1 = log_XV.scatter(-1, top_X1, -torch.inf).logsumexp(-1, keepdim=True)
    return (total_X1 + torch.log1p(-(log_XV - total_X1).exp())).scatter(-1, top_X1, without_top_X1)


class Proposal(NamedTuple):
    """Values that the models give every token in place of a masked one, each [V]."""

    p_G_V: Tensor
    p_S_V: Tensor | None
    """The probability of being drawn where the masked token is the original; `None` without a sampling head."""
    estimated_loss_V: Tensor | None
    """The discriminator's loss as HP_Loss's sampling head estimates it."""


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
            for start in range(0, len(ids_B), rows):
                part = slice(start, start + rows)
                log_p_G_XV, *head_XV = (score_BV[part].double() for score_BV in scores)
                parts.append(draws_of(log_p_G_XV.log_softmax(-1), ids_B[part], sampling, *head_XV))
            columns.append(Draws(*map(torch.cat, zip(*parts, strict=True))))
        return Draws(*(torch.stack(column, 1) for column in zip(*columns, strict=True)))

    @property
    def samples(self) -> bool:
        """Whether there is a sampling head, and a record of how replacements were drawn with it."""
        return self.sampling is not None and "sampler_transform" in self.generator

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
        log_p_G_V, original = log_p_G_V.log_softmax(-1), ids_BL[0, position]
        if not head_V or self.sampling is None:
            return Proposal(log_p_G_V.exp(), None, None)
        weight_V, original_V = log_weights(log_p_G_V, self.sampling, *head_V)
        if original_V is not None:
            weight_V[original] = original_V[original]
        loss_V = None
        if self.sampling.objective == "hp_loss":
            loss_V = F.softplus(head_V[0].index_put((original,), -head_V[0][original]))
        return Proposal(log_p_G_V.exp(), weight_V.softmax(-1), loss_V)

    def words(self, sentence: str, score_T: np.ndarray) -> list[tuple[str, float]]:
        """Returns the words of a sentence, which spaces separate, each with the sum of its tokens' scores."""
        words = [*re.finditer(r"\S+", sentence)]
        ends = [word.end() for word in words]
        spans = self.tokenizer(sentence, return_offsets_mapping=True)["offset_mapping"][1:-1]
        place_T = np.searchsorted(ends[:-1], [end for _, end in spans])  # spaces at the end belong to the last word
        sums = np.bincount(place_T, weights=score_T, minlength=len(words))
        return [(word[0], float(total)) for word, total in zip(words, sums, strict=True)]


def hidden(model: nn.ModuleDict, ids_BL: Tensor) -> Tensor:
    return model["electra"](ids_BL, torch.ones_like(ids_BL), torch.zeros_like(ids_BL))


def batches_by_length(sequences: Iterable[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    """Yields batches of sequences of equal length, so that none is padded."""
    for length, group in groupby(sorted(sequences, key=lambda one: (len(one), one)), key=len):
        alike, size = list(group), max(1, TOKENS_PER_BATCH // length)
        yield from (alike[start : start + size] for start in range(0, len(alike), size))


def open_scorer(
    name: str,
    kinds: Collection[Kind],
    generator: str | None = None,
    mask_share: float | None = None,
    random_weights: bool = False,
) -> Scorer:
    """Opens the models of a run, of an export, or of a Hugging Face folder with its `generator`, on the GPU if any.

    Where no `kinds` are named, the models give all that they can.
    `mask_share` is for a discriminator whose folder does not record it. A masked language model's likelihood is its
    generator's score. With `random_weights`, the models are untrained.

    Raises:
        ConfigError: there is no such model or no generator that fits, or the share of masked tokens is unknown.
    """
    if not torch.cuda.is_available():
        cpu_ops.use()
    found = find_donors((name,)) if is_run((name,)) else family(read_stored(name))
    main = next((one for one in found if one.role == "discriminator"), found[0])
    if generator and main.role == "discriminator":
        found = family(main, read_stored(generator))
    models, label = {one.role: one for one in found}, f"{name} (random weights)" if random_weights else name
    first, tokenizer = built(main, random_weights), tokenizer_of(main)
    if main.role == "generator":
        chosen = tuple(dict.fromkeys(kind for kind in kinds if kind != "discriminator"))
        return Scorer(label, None, first, None, tokenizer, chosen or ("generator",))
    second, head = models.get("generator"), models.get("sampling head")
    if not kinds:
        known = SAMPLING in main.settings or mask_share is not None
        kinds = get_args(Kind)[: 1 if second is None else 2 + known]
    if {*kinds} == {"discriminator"} or (second is None and "likelihood" not in kinds and "discriminator" in kinds):
        return Scorer(label, first, None, None, tokenizer, ("discriminator",))
    if second is None:
        raise ConfigError(f"score: got {' '.join(kinds)}, but {name} has no generator inside; add --generator FOLDER")
    if tokenizer_of(second).get_vocab() != tokenizer.get_vocab():
        raise ConfigError(
            f"generator: {second.folder} is not a masked language model with the vocabulary of {name}; name one"
        )
    sampling = sampling_of(main, mask_share) if "likelihood" in kinds else None
    predictor = built(second, random_weights)
    if head and sampling and sampling.objective in ("hp_loss", "hp_dist"):
        predictor.update(built(head, random_weights, predictor["electra"].embeddings.word_embeddings))
    elif sampling and sampling.objective != P_G:
        print_warning(
            f"{name} was trained with {sampling.objective}, whose sampler {second.folder} does not hold: its likelihood"
            " assumes replacements drawn from p_G",
            to=sys.stderr,
        )
    return Scorer(label, None if {*kinds} == {"generator"} else first, predictor, sampling, tokenizer, tuple(kinds))


def built(model: Stored, random_weights: bool, words: Any = None) -> Any:
    torch.manual_seed(0)  # untrained weights are the same in every process
    return model.build(random_weights, words).eval().to("cuda" if torch.cuda.is_available() else "cpu")


def tokenizer_of(model: Stored) -> Any:
    """Loads a model's tokenizer, for which "[MASK]" in a sentence is text, as in pre-training.

    Raises:
        ConfigError: it does not fit the model, or puts no special tokens around a text.
    """
    tokenizer = load_tokenizer(model.tokenizer, model.config.vocab_size)
    tokenizer.split_special_tokens = True
    marked = tokenizer("")["input_ids"] == [tokenizer.cls_token_id, tokenizer.sep_token_id]
    if not marked or tokenizer.mask_token_id is None:
        raise ConfigError(
            f"model: the tokenizer in {model.tokenizer} does not fit; expected [CLS] and [SEP] around a text and a"
            " [MASK]; save the model's own there"
        )
    return tokenizer


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
