"""A controlled language: agreement at a distance under Zipfian noise, with p(x | masked text) known exactly.

    python bench/language.py write runs/language              # text, vocabulary, minimal pairs
    python bench/language.py measure runs/language --runs RUN # -> RUN/language.json

A document has three sentences, and each sentence

    noun(c) phrase ... phrase verb(c) [phrase] [adverb] .

where a phrase is `preposition determiner(k) adjective ... noun(k)`. Letters are classes, drawn uniformly: the verb
agrees with the sentence's first noun, across phrases whose nouns need not. Which word of its kind and class is shown
follows Zipf's law. The grammar has finitely many states, so the forward-backward algorithm gives p(x | masked text).

Shape letters: B documents, L length, S states, V words, N masked positions, P pairs.
"""

import json
import random
import sys
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, NamedTuple

if not __package__:  # run as a script: import from the repository, never from the script's own folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data_prep.masking import mask_size
from electra_sampler.foundation.command_line import POSITIONAL, run_command
from electra_sampler.foundation.config import StrictConfig
from electra_sampler.foundation.files import write_atomically
from finetune.minimal_pairs import KEYS, Pair, read_pairs
from finetune.scoring import Scorer, batches_by_length, hidden, open_scorer
from pretrain.huggingface.export import export
from pretrain.method.registry import GivenObjective
from pretrain.runs.folder import read_run
from pretrain.runs.models import choose_checkpoints, load_checkpoint

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LETTERS = "bdgk"
CLASSES = len(LETTERS)
SHARPNESS = 2.15
"""Exponent of Zipf's law: a draw from p is the original at 60% of the masked positions."""
WORDS = {"noun": 20, "preposition": 5, "determiner": 1, "adjective": 20, "verb": 20, "adverb": 20, ".": 1}
"""Words of each kind; of nouns, determiners and verbs, as many in each class."""
SENTENCES = 3
BEFORE_VERB, AFTER_VERB = (0.2, 0.4, 0.3, 0.1), (0.5, 0.5)
"""Probability of each number of phrases, before and after the verb."""
ADJECTIVE = (0.4, 0.25, 0.0)
"""Probability that an adjective follows none, one, two of them."""
ADVERB = 0.4
DOCUMENTS, PAIRS, EXACT_DOCUMENTS = 200_000, 1_000, 512


class State(NamedTuple):
    """A word of a sentence with all that the rest of the document depends on; a class that no longer matters is 0."""

    kind: str
    sentence: int
    head: int = 0
    """Class of the sentence's first noun, until the verb has shown it."""
    after_verb: bool = False
    phrases: int = 0
    """Phrases to come before the verb or the sentence's end."""
    noun: int = 0
    """Class of this phrase's noun."""
    adjectives: int = 0

    @property
    def letter(self) -> str:
        """The class that the word shows."""
        shown = {"noun": self.noun, "determiner": self.noun, "verb": self.head}
        return LETTERS[shown[self.kind]] if self.kind in shown else ""

    def successors(self) -> Iterator[tuple[float, "State"]]:
        """Yields every state that can follow, with its probability; none follows the document's last word."""
        match self.kind:
            case "." if self.sentence + 1 < SENTENCES:
                for head in range(CLASSES):
                    yield 1 / CLASSES, State("noun", self.sentence + 1, head, noun=head, phrases=-1)
            case "noun" if self.phrases < 0:  # the sentence's first
                yield from self._then_phrases(BEFORE_VERB)
            case "verb":
                yield from self._replace(head=0, after_verb=True)._then_phrases(AFTER_VERB)
            case "preposition":
                yield from ((1 / CLASSES, self._replace(kind="determiner", noun=noun)) for noun in range(CLASSES))
            case "determiner" | "adjective":
                more = ADJECTIVE[self.adjectives]
                if more:
                    yield more, self._replace(kind="adjective", adjectives=self.adjectives + 1)
                yield 1 - more, self._replace(kind="noun", adjectives=0)
            case "noun":
                yield from self._then(self.phrases)
            case "adverb":
                yield 1.0, State(".", self.sentence)

    def _then_phrases(self, numbers: tuple[float, ...]) -> Iterator[tuple[float, "State"]]:
        for number, share in enumerate(numbers):
            yield from ((share * part, state) for part, state in self._then(number))

    def _then(self, phrases: int) -> Iterator[tuple[float, "State"]]:
        """Yields what can follow if so many phrases come before the verb or the sentence's end."""
        end = self._replace(noun=0, phrases=0)
        if phrases:
            yield 1.0, end._replace(kind="preposition", phrases=phrases - 1)
        elif not self.after_verb:
            yield 1.0, end._replace(kind="verb")
        else:
            yield from ((ADVERB, State("adverb", self.sentence)), (1 - ADVERB, State(".", self.sentence)))


START = State(".", -1)


class Language:
    """The grammar's states, its words, and the exact distribution of masked words."""

    def __init__(self) -> None:
        self.numbers = {START: 0}
        self.edges: list[tuple[int, int, float]] = []
        for state in (found := [START]):
            for share, following in state.successors():
                if following not in self.numbers:
                    self.numbers[following] = len(found)
                    found.append(following)
                self.edges.append((self.numbers[state], self.numbers[following], share))
        self.states = found
        self.words = [*dict.fromkeys(word for state in found for word in words_of(state))]

    @cached_property
    def emission_SV(self) -> np.ndarray:
        ids = {word: number for number, word in enumerate(self.words)}
        table = np.zeros((len(self.states), len(self.words)))
        for number, state in enumerate(self.states):
            table[number, [ids[word] for word in words_of(state)]] = zipf(WORDS[state.kind])
        return table

    def document(self, source: random.Random) -> list[tuple[State, str]]:
        """Draws a document: its states with their words."""
        state, shown = START, []
        while following := [*state.successors()]:
            shares, states = zip(*following, strict=True)
            (state,) = source.choices(states, shares)
            shown += [(state, source.choices(words_of(state), zipf(WORDS[state.kind]))[0])]
        return shown

    def posterior(self, ids_BL: np.ndarray, masked_BL: np.ndarray) -> np.ndarray:
        """Returns p(x | masked documents), [B, L, V], of documents of equal length, where masked; 0 elsewhere."""
        from scipy.sparse import csr_array

        sources, targets, shares = map(np.array, zip(*self.edges, strict=True))
        size, (documents, length) = len(self.states), ids_BL.shape
        steps_SS = csr_array((shares, (sources, targets)), shape=(size, size))
        shown_LSB = np.where(masked_BL.T[:, None], 1.0, self.emission_SV.T[ids_BL.T].transpose(0, 2, 1))
        before = np.zeros((length, size, documents))
        state_SB = np.zeros((size, documents))
        state_SB[0] = 1
        for place in range(length):
            before[place] = steps_SS.T @ state_SB
            state_SB = before[place] * shown_LSB[place]
            state_SB /= state_SB.sum(0)
        rest_SB = np.zeros((size, documents))
        rest_SB[[number for number, state in enumerate(self.states) if not any(state.successors())]] = 1
        p_BLV = np.zeros((*ids_BL.shape, len(self.words)))
        for place in reversed(range(length)):
            where = masked_BL[:, place]
            joint_SN = before[place][:, where] * rest_SB[:, where]
            p_BLV[where, place] = (joint_SN / joint_SN.sum(0)).T @ self.emission_SV
            rest_SB = steps_SS @ (rest_SB * shown_LSB[place])
            rest_SB /= rest_SB.max(0)
        return p_BLV


def zipf(number: int) -> list[float]:
    weights = np.arange(1, number + 1) ** -SHARPNESS
    return (weights / weights.sum()).tolist()


def words_of(state: State) -> list[str]:
    """Returns the words that a state may show, the most frequent first."""
    if state.kind == ".":
        return ["."]
    return [f"{state.kind[:3]}{state.letter}{number}" for number in range(WORDS[state.kind])]


def minimal_pairs(language: Language, number: int, source: random.Random) -> Iterator[Pair]:
    """Yields documents, each with a twin in which one verb is of another class, and otherwise the same word."""
    for _ in range(number):
        document = language.document(source)
        place = source.choice([place for place, (state, _) in enumerate(document) if state.kind == "verb"])
        state, word = document[place]
        other = source.choice([letter for letter in LETTERS if letter != state.letter])
        between = [one.kind for one, _ in document[:place] if one.sentence == state.sentence].count("preposition")
        good = [word for _, word in document]
        bad = [*good[:place], word.replace(state.letter, other), *good[place + 1 :]]
        yield Pair(" ".join(good), " ".join(bad), "agreement", f"verb, {between} phrases", f"agreement_{between}")


def write(folder: Path) -> None:
    """Writes the language's text, its vocabulary and minimal pairs."""
    language, source = Language(), random.Random(1)
    texts = (" ".join(word for _, word in language.document(source)) for _ in range(DOCUMENTS))
    pairs = (dict(zip(KEYS, pair, strict=True)) for pair in minimal_pairs(language, PAIRS, source))
    files = {
        "text/text.txt": "\n\n".join(text.replace(" . ", " .\n") for text in texts),
        "vocab/vocab.txt": "\n".join((*SPECIAL, *language.words)),
        "pairs/agreement.jsonl": "\n".join(map(json.dumps, pairs)),
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, (content + "\n").encode())


LEAST = 1e-12
"""Least probability inside a logarithm."""


class Masked(NamedTuple):
    """Masked documents of one length, with the exact distribution of the N masked tokens, in order."""

    ids_BL: Tensor
    """The documents' tokens between [CLS] and [SEP]."""
    masked_BL: Tensor
    p_NV: Tensor


def masked_documents(language: Language, ids: list[int], special: tuple[int, int]) -> Iterator[Masked]:
    """Yields new documents, 15% of each masked; `ids` are the words' token ids, `special` those of [CLS] and [SEP]."""
    source, generator = random.Random(2), np.random.default_rng(2)
    numbers = {word: number for number, word in enumerate(language.words)}
    drawn = (tuple(numbers[word] for _, word in language.document(source)) for _ in range(EXACT_DOCUMENTS))
    for batch in batches_by_length(drawn):
        words_BL = np.array(batch)
        places_BK = generator.random(words_BL.shape).argsort(1)[:, : mask_size(words_BL.shape[1] + 2)]
        masked_BL = np.zeros(words_BL.shape, bool)
        np.put_along_axis(masked_BL, places_BK, True, 1)
        p_BLV = language.posterior(words_BL, masked_BL)
        edges = (torch.full((len(batch), 1), token) for token in special)
        ids_BL = torch.cat([next(edges), torch.tensor(ids)[torch.from_numpy(words_BL)], next(edges)], 1)
        yield Masked(ids_BL, F.pad(torch.from_numpy(masked_BL), (1, 1)), torch.from_numpy(p_BLV[masked_BL]))


@torch.inference_mode()
def exact_measures(scorer: Scorer, masked: Iterable[Masked], ids: list[int]) -> dict[str, float]:
    """Returns means over masked positions: the generator's distance from p, its draws, and the discriminator's loss on
    them beside the bound's, P(original) = p(x' | masked text), which knows the masks.
    """
    seed = torch.Generator().manual_seed(3)
    columns: dict[str, list[Tensor]] = {}
    for ids_BL, masked_BL, p_NV in masked:
        shown_BL = ids_BL.masked_fill(masked_BL, scorer.tokenizer.mask_token_id)
        head = scorer.generator
        hidden_NH = hidden(head, shown_BL)[masked_BL]
        scores_NV = head["generator_lm_head"](head["generator_predictions"](hidden_NH))[:, ids].double()
        log_g_NV = scores_NV.log_softmax(-1)
        x_N1 = (ids_BL[masked_BL][:, None] == torch.tensor(ids)).long().argmax(1, keepdim=True)
        g_NV, log_p_NV = log_g_NV.exp(), p_NV.clamp(min=LEAST).log()
        loss_NV = -torch.log1p(-p_NV.clamp(max=1 - LEAST)).scatter(1, x_N1, log_p_NV.gather(1, x_N1))
        drawn_N1 = torch.multinomial(g_NV, 1, generator=seed)
        found = {
            "distance from p": (p_NV * (log_p_NV - log_g_NV)).sum(1),
            "MLM loss": -log_g_NV.gather(1, x_N1)[:, 0],
            "originals": g_NV.gather(1, x_N1)[:, 0],
            "originals of p": p_NV.gather(1, x_N1)[:, 0],
            "maxima above .9": (g_NV.amax(1) > 0.9).double(),
        }
        if scorer.discriminator is not None:
            replaced_BL = ids_BL.masked_scatter(masked_BL, torch.tensor(ids)[drawn_N1])
            d_NC = scorer.discriminator["discriminator_predictions"](hidden(scorer.discriminator, replaced_BL))
            d_N, is_x_N = d_NC[masked_BL].double().flatten(), (drawn_N1 == x_N1)[:, 0]
            bound_N, p_S_NV = loss_NV.gather(1, drawn_N1)[:, 0], g_NV * (loss_NV + LEAST)
            found |= {
                "D's loss": F.softplus(torch.where(is_x_N, d_N, -d_N)),
                "D's distance from the bound": F.softplus(torch.where(is_x_N, d_N, -d_N)) - bound_N,
                "bound": bound_N,
                "originals of p_S by the bound": (p_S_NV / p_S_NV.sum(1, keepdim=True)).gather(1, x_N1)[:, 0],
            }
        for name, values_N in found.items():
            columns.setdefault(name, []).append(values_N)
    return {name: float(torch.cat(parts).mean()) for name, parts in columns.items()}


def measure(run: Path, folder: Path) -> None:
    """Writes RUN/language.json: at each kept checkpoint, exact measures, and which minimal pairs are right by the
    discriminator (of a masked language model: by its pseudo-likelihood); at the last, also by the generator.
    """
    description, pairs = read_run(run), read_pairs(folder / "pairs")
    *before, last = choose_checkpoints(run, ("all",))
    language, found = Language(), {}
    ids, masked = [0], list[Masked]()
    for checkpoint in (*before, last):
        with TemporaryDirectory() as place:
            model, out = load_checkpoint(description, checkpoint), Path(place) / "model"
            export(model, run / "tokenizer", "", out, description.mask_share)
            scorer = open_scorer(str(out), ("discriminator", "generator"))
        if not masked:
            ids = scorer.tokenizer.convert_tokens_to_ids(language.words)
            ends = scorer.tokenizer.cls_token_id, scorer.tokenizer.sep_token_id
            masked = [*masked_documents(language, ids, ends)]
        exact = exact_measures(scorer, masked, ids)
        if checkpoint is not last and scorer.discriminator is not None:
            scorer = scorer._replace(generator=None, kinds=("discriminator",))
        scores = scorer.scores({sentence for pair in pairs for sentence in (pair.good, pair.bad)})
        right = {}
        for kind in scorer.kinds:
            gain_P = np.array([(scores[pair.good][kind] - scores[pair.bad][kind]).sum() for pair in pairs])
            right[kind] = (0.5 + 0.5 * np.sign(gain_P)).tolist()
        found[checkpoint.step] = {"exact": exact, "right": right}
    content = {"terms": [pair.term for pair in pairs], "steps": found}
    write_atomically(run / "language.json", json.dumps(content).encode())


class LanguageOptions(StrictConfig):
    """The command line of the language."""

    action: Annotated[Literal["write", "measure"], POSITIONAL]
    """what to do"""
    folder: Annotated[Path, POSITIONAL]
    """folder of the language"""
    runs: tuple[Path, ...] = ()
    """runs to measure"""
    objective: tuple[GivenObjective, ...] = ()
    """samplers of these runs that are in files, as for run.py"""


def main(options: LanguageOptions) -> None:
    if options.action == "write":
        write(options.folder)
    for run in options.runs:
        measure(run, options.folder)


if __name__ == "__main__":
    sys.exit(run_command(main, LanguageOptions, __doc__))
