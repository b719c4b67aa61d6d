"""Eleven checks of a run's health, each for one problem, from the run's own files (symptoms.py).

The docstring of each threshold names its source. "Healthy" is the worst value among the ten healthy runs in
`docs/evidence/doctor.md`, from which the thresholds were set.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from data_prep.manifest import MOST_PADDING
from electra_sampler.foundation.config import ConfigError, counted
from electra_sampler.foundation.stats import binary_entropy
from pretrain.analysis.analysis import regime
from pretrain.analysis.run_history import NONFINITE, Log, read_starts, steps_named, value_of
from pretrain.analysis.symptoms import SkippedCheck, Symptoms
from pretrain.engine.hardware import MUCH_FASTER
from pretrain.method.electra import Detection
from pretrain.method.hardness_prediction import HPDist, HPLoss
from pretrain.method.objective import Objective, PredictionConfig
from pretrain.method.registry import objective_class
from pretrain.planning.plan_warnings import MOST_EPOCHS
from pretrain.runs.log import MOST_WAITING

MOST_UNKNOWN = 0.01
"""Share of [UNK] among the word pieces. Healthy: 0; BERT's vocabulary on English Wikipedia: .0002."""
MOST_PIECES = ((16_000, 1.75), (1_000, 2.5), (0, 4.0))
"""Word pieces per word, by minimum vocabulary size. Healthy, with 2,048: 2.0. With BERT's 30,522, English has 1.1;
German, Hungarian and Turkish, which that vocabulary does not fit, have 1.9, 2.3 and 2.6."""
MOST_GAP = 0.5
"""MLM loss on held-out text minus MLM loss in training, in nats. Healthy: .03."""
FEW_EPOCHS = 4
"""Up to this number of epochs, a gap of the MLM loss alone does not count as repetition: a run on few novels, with
other authors held out, has such a gap after 3 epochs. Up to 4 passes are nearly as good as new text (Muennighoff et al.
2023)."""
MOST_APART = 0.1
"""Discriminator loss over the entropy of the replaced share, on held-out text minus in training: small models overfit
here first. Healthy: .01."""
MOST_SPIKES, MOST_SKIPPED = 0.01, 0.02
"""Shares of the steps. Healthy: 0; fp16's dynamic loss scale, which doubles every 1,000 steps, skips .001."""
MOST_RISEN = 0.3
"""Current MLM loss minus its lowest mean, in nats. Healthy: 0."""
LEAST_FROM_CHANCE = 0.001
"""Distance of the detection AUC from .5, in the best recent record after the warm-up. It is .02 or more even on the
plateau (see `MOST_OF_PLATEAU`), as special tokens are recognized. At exactly .5, every token gets the same answer."""
MOST_ACCURATE, LEAST_REPLACED = 0.9, 0.1
"""Shares of the masked positions: generator accuracy, and replaced tokens. With a tenth of them replaced (.015 of all
positions), detection has a fifth of the entropy that it has with all of them replaced."""
LEAST_LEARNED = 0.1
"""Entropy of the word pieces minus MLM loss, in nats. Healthy, after 500 steps: .29."""
MOST_OF_PLATEAU = 0.97
"""Discriminator loss relative to the plateau: its value if the discriminator knows how many tokens are replaced, but
not which. Healthy, after 500 steps: .85."""
SPECIAL_TOKENS = 3
"""Special tokens in a sequence of two segments. They are never replaced, so the plateau is the entropy of the rest."""
LEAST_CORRELATION = 0.1
"""Correlation of estimated and actual loss; 0 means no better than the class mean. Healthy, after 500 steps: .29."""
MOST_RATIO = 5.0
"""99th percentile of p_G/p_S, whose mean is 1: above 5, 1% of the draws have 5% of the weight. Healthy: 1.7."""
LEAST_STEPS, WARMUPS = 500, 4
"""Minimum steps and warm-ups before the models are judged; earlier, every run looks as if it learned nothing."""


class Finding(NamedTuple):
    """The result of one check, with or without a problem: what it looks for, evidence and remedy."""

    name: str
    verdict: str
    """The problem in one sentence; true only if there is a problem."""
    evidence: str
    """Measured value, limit and steps."""
    remedy: str
    """How to fix it."""
    excess: tuple[float, ...]
    """How far each measured value is beyond its limit; above 0 is a problem."""

    @property
    def is_problem(self) -> bool:
        return any(part > 0 for part in self.excess)


class Diagnosis(NamedTuple):
    """The results of all checks on a run."""

    checked: list[Finding]
    skipped: list[str]
    """For each check that could not be made: why."""

    @property
    def findings(self) -> list[Finding]:
        return [finding for finding in self.checked if finding.is_problem]


def padding(run: Symptoms) -> Finding:
    share = 1 - run.mean_length / run.description.seq_length
    return Finding(
        name="padding waste",
        verdict=f"{share:.0%} of the computation is spent on padding.",
        evidence=f"Padding is {share:.3f} of all positions in steps 1 to {run.step:,}; the limit is {MOST_PADDING}.",
        remedy="Build the shards again with --packing full or a shorter --seq_length, or with --documents file where"
        " each file is one document.",
        excess=(share - MOST_PADDING,),
    )


def vocabulary(run: Symptoms) -> Finding:
    text, size = run.text, run.description.vocab_size
    most = next(most for least_size, most in MOST_PIECES if size >= least_size)
    return Finding(
        name="vocabulary does not fit",
        verdict="The vocabulary does not match the text: words are split into many pieces, or are unknown.",
        evidence=f"A word has {text.pieces_per_word:.2f} pieces (the limit is {most} for a vocabulary of {size:,}), and"
        f" {text.unknown_share:.2%} of the pieces are [UNK] (the limit is {MOST_UNKNOWN:.0%}), in the text of steps 1"
        f" to {text.steps}.",
        remedy="Train a vocabulary on this text with data_prep/train_vocab.py, and build the shards with it.",
        excess=(text.unknown_share - MOST_UNKNOWN, text.pieces_per_word - most),
    )


def repetition(run: Symptoms) -> Finding:
    if not run.held_out:
        raise SkippedCheck("repeated data: there is no evaluation on held-out text")
    held_out, epochs = run.held_out[-1], run.last["epoch"]
    step = held_out["step"]  # compared with training at the time of that evaluation
    gap = held_out["mlm_loss"] - run.mean("mlm_loss", step)
    excess = [epochs - MOST_EPOCHS]
    detection = ""
    if epochs > FEW_EPOCHS:
        excess.append(gap - MOST_GAP)
    if "discriminator_loss" in run.last:
        losses = run.mean("discriminator_loss", step) / run.mean("discriminator_entropy", step)
        apart = held_out["discriminator_loss"] / held_out["discriminator_entropy"] - losses
        excess.append(apart - MOST_APART)
        detection = f", L_D over the entropy of the replaced share {apart:+.3f} (the limit is {MOST_APART:+})"
    differ = ""
    if gap > MOST_GAP and max(excess) <= 0:
        differ = " So few passes memorize nothing: the held-out documents differ in kind from the training documents."
    return Finding(
        name="data repeated or unshuffled",
        verdict="The run overfits its text: the data repeats too often, or similar text comes in a row.",
        evidence=f"On held-out text at step {step:,} the MLM loss is {gap:+.2f} nats from the"
        f" training loss in {run.when(step)} (the limit is {MOST_GAP:+}){detection}, and the text was read {epochs:.3g}"
        f" times (the limit is {MOST_EPOCHS}).{differ}",
        remedy="Build the shards from more text, shuffled, with --dedup exact if it contains duplicate documents; or"
        " train for fewer steps.",
        excess=tuple(excess),
    )


def learning_rate(run: Symptoms) -> Finding:
    first = run.recent()[0]
    steps = max(1, run.step - first["step"])
    spikes, skipped = run.last["loss_spikes"] / run.step, (run.last["skipped"] - first["skipped"]) / steps
    lowest, at = run.lowest_loss
    risen = run.mean("mlm_loss") - lowest
    ended = [step for step in steps_named(run.folder, NONFINITE) if step > run.step]
    excess = [spikes - MOST_SPIKES, skipped - MOST_SKIPPED, risen - MOST_RISEN, float(len(ended))]
    others = "".join(f"; the gradient of step {step:,} is not finite" for step in ended)
    if "auc_all" in run.last and first["step"] > run.run.optim.warmup_steps:
        apart = max(abs(record.get("auc_all", 1.0) - 0.5) for record in run.recent())
        excess.append(LEAST_FROM_CHANCE - apart)
        others += f"; the AUC is up to {apart:.4f} from chance (at least {LEAST_FROM_CHANCE} expected)"
    return Finding(
        name="learning rate too high",
        verdict="Training is unstable: losses spike or rise, gradients overflow, or the discriminator has collapsed.",
        evidence=f"{spikes:.2%} of steps 1 to {run.step:,} were spikes (the limit is {MOST_SPIKES:.0%}),"
        f" {skipped:.1%} of the last {steps:,} were skipped (the limit is {MOST_SKIPPED:.0%}), and the MLM loss in"
        f" {run.when()} is {risen:.2f} nats above its lowest mean, at step {at:,} (the limit is"
        f" {MOST_RISEN}){others}.",
        remedy="Lower optim.lr, raise optim.warmup_steps or keep optim.gradient_clipping at 1, and start a new run.",
        excess=tuple(excess),
    )


def straggler(run: Symptoms) -> Finding:
    if "slowest_rank" not in run.last:
        raise SkippedCheck("a straggling rank: the run has a single process")
    ranks = [record["slowest_rank"] for record in run.recent()]
    rank = max(ranks, key=ranks.count)
    waiting = 1 - run.mean("median_rank_seconds") / run.mean("slowest_rank_seconds")
    always = ranks.count(rank) == len(ranks)
    return Finding(
        name="a rank straggles",
        verdict=f"All ranks wait for rank {rank}.",
        evidence=f"Data and forwards take {waiting:.0%} less time on the median rank than on the slowest one (the"
        f" limit is {MOST_WAITING:.0%}), which was rank {rank} in {ranks.count(rank)} of {len(ranks)} records of"
        f" {run.when()}.",
        remedy="Check that machine for other processes, clock speed, temperature and disk, or train without it.",
        excess=(waiting - MOST_WAITING if always else 0.0,),
    )


def slow_precision(run: Symptoms) -> Finding | None:
    start = (read_starts(run.folder) or [{}])[-1]  # the newest
    if start.get("precision") == "float32":
        return None
    own, fp32, step = (value_of(start, name) for name in ("matrix_peak_tflops", "fp32_peak_tflops", "step"))
    if not (own > 0 and fp32 > 0 and step >= 0):  # also without a number
        raise SkippedCheck("slow precision: the last start did not measure the speed in fp32")
    precision, faster = start["precision"], fp32 / own
    return Finding(
        name="slow precision",
        verdict=f"This machine is slow in {precision}: it multiplies {faster:.1f} times as fast in fp32.",
        evidence=f"At the start after step {step:,.0f}, matrix products ran at {own:.3g} TFLOP/s in {precision}"
        f" and at {fp32:.3g} in fp32, {faster:.3g} times as fast; the limit is {MUCH_FASTER:g}.",
        remedy="Stop the run, and resume it with --deepspeed_config ds_configs/zero1_fp32.json in the same command.",
        excess=(faster - MUCH_FASTER,),
    )


def easy_replacements(run: Symptoms) -> Finding:
    accuracy, replaced = run.mean("mlm_accuracy"), run.mean("replace_rate")
    return Finding(
        name="generator too good",
        verdict="The generator predicts nearly all masked tokens: few are replaced, and the discriminator has little to"
        " detect.",
        evidence=f"The generator's accuracy is {accuracy:.3f} (the limit is {MOST_ACCURATE}), and {replaced:.3f} of"
        f" the masked positions are replaced (at least {LEAST_REPLACED} expected), in {run.when()}.",
        remedy="Use a smaller model.generator_hidden_size, objective.mask_keep_fraction=0, objective.temperature=1,"
        " or less predictable text.",
        excess=(accuracy - MOST_ACCURATE, LEAST_REPLACED - replaced),
    )


def generator(run: Symptoms) -> Finding | None:
    if not isinstance(run.run.objective, PredictionConfig):
        return None
    loss, entropy = run.mean("mlm_loss"), run.text.unigram_entropy
    return Finding(
        name="generator does not learn",
        verdict="The generator has learned little more than the frequency of each word piece.",
        evidence=f"Its MLM loss is {loss:.3f} nats in {run.when()}, {entropy - loss:.3f} below the entropy of the word"
        f" pieces; at least {LEAST_LEARNED} is expected.",
        remedy="Raise optim.lr if the loss still falls slowly; start narrow models with"
        " model.relative_bias_init=local and model.initializer_range=0.1.",
        excess=(LEAST_LEARNED - (entropy - loss),),
    )


def plateau(run: Symptoms) -> Finding:
    loss, accuracy, auc = (run.mean(name) for name in ("discriminator_loss", "accuracy_all", "auc_all"))
    ordinary = 1 - SPECIAL_TOKENS / run.mean_length
    of_plateau = loss / (ordinary * float(binary_entropy(min(1.0, run.mean("replaced_share") / ordinary))))
    return Finding(
        name="discriminator on the plateau",
        verdict="The discriminator knows how many tokens are replaced but not which: its accuracy of"
        f' {accuracy:.0%} is what always answering "original" would score.',
        evidence=f"The discriminator's loss is {loss:.4f} in {run.when()}, {of_plateau:.3f} of the entropy of the"
        f" replaced share among ordinary tokens; the limit is {MOST_OF_PLATEAU} (AUC {auc:.2f}; chance is .5).",
        remedy="Train on while that loss falls; else try another optim.lr, set objective.lambda2=50, and start narrow"
        " models with model.relative_bias_init=local and model.initializer_range=0.1.",
        excess=(of_plateau - MOST_OF_PLATEAU,),
    )


def sampling_head(run: Symptoms) -> Finding:
    known = [record.get("estimate_correlation.replaced", 0.0) for record in run.recent()]
    correlation = sum(known) / len(known)
    return Finding(
        name="sampling head dead",
        verdict="The sampling head's estimate of the discriminator's loss is hardly better than the class mean.",
        evidence=f"Among replaced tokens, the correlation of estimated and actual loss is {correlation:.3f} in"
        f" {run.when()}; at least {LEAST_CORRELATION} is expected.",
        remedy="If the discriminator learns nothing, fix that first; else raise objective.lambda1 (in the paper 5).",
        excess=(LEAST_CORRELATION - correlation,),
    )


def ratios(run: Symptoms) -> Finding:
    ratio, median = run.mean("ratio_p99"), run.mean("ratio_p50")
    return Finding(
        name="importance ratios exploding",
        verdict="The sampling distribution is too far from the generator's: a few tokens with a huge p_G/p_S dominate"
        " the sampling head's loss.",
        evidence=f"One draw in a hundred has a p_G/p_S above {ratio:.3g} in {run.when()} (median {median:.3g}); the"
        f" limit is {MOST_RATIO:g}.",
        remedy="Set objective.temperature=1 and objective.lambda1=1, as in the paper, lower optim.lr, or bound the"
        " ratios with objective.mixture=0.1.",
        excess=(ratio - MOST_RATIO,),
    )


def regime_of_run(run: Symptoms) -> Finding:
    """The regime, which is never a problem."""
    below = run.text.unigram_entropy - run.mean("mlm_loss")
    described = regime(1 - run.mean("replace_rate"), run.sure, below, run.mean("replaced_share"))
    return Finding(name="regime", verdict="", evidence=f"In {run.when()} {described}.", remedy="", excess=())


Check = Callable[[Symptoms], Finding | None]
"""A check; returns `None` if the run cannot have the problem.

Raises:
    SkippedCheck: the run's files do not allow the check.
"""
AT_ONCE: tuple[Check, ...] = (padding, vocabulary, repetition, learning_rate, straggler, slow_precision)
ONCE_LEARNED: dict[Check, type] = {
    regime_of_run: Detection,
    easy_replacements: Detection,
    generator: Objective,
    plateau: Detection,
    sampling_head: HPLoss,
    ratios: HPDist,
}
"""Checks of what a run has learned, each with the objectives that can have its problem."""


def diagnose(run_folder: Path, log: Log | None = None) -> Diagnosis:
    """Makes every check that the run's files allow; `log` is the run's log if it has been read already.

    Raises:
        ConfigError: not a run folder, or the run has too few steps to be judged.
    """
    run, checked, skipped = Symptoms(run_folder, log), [], []
    steps, least = run.run.optim.steps, max(LEAST_STEPS, WARMUPS * run.run.optim.warmup_steps)
    left = least - run.step
    trained = objective_class(run.run.objective.name)
    once_learned = [check for check, kind in ONCE_LEARNED.items() if left <= 0 and issubclass(trained, kind)]
    for check in (*AT_ONCE, *once_learned):
        try:
            if answer := check(run):
                if not all(map(math.isfinite, answer.excess)):
                    raise ArithmeticError
                checked.append(answer)
        except SkippedCheck as reason:
            skipped.append(str(reason))
        except KeyError as name:
            skipped.append(f"checks of {name.args[0]}: the run's records have no valid value of it")
        except ArithmeticError:
            skipped.append(
                f"the check of {check.__name__.replace('_', ' ')}: the values in the run's records give no finite"
                " result"
            )
    if left > 0:
        why = f"too early to judge: look again {counted(left, 'step')} later"
        if steps < least:
            why = f"too short to judge: got {counted(steps, 'step')}, expected at least {least:,}; start a longer run"
        skipped.append(f"checks of learning: {why}")
        if not any(finding.is_problem for finding in checked):
            raise ConfigError(f"{run_folder}: {why}")
    return Diagnosis(checked, [*dict.fromkeys(skipped)])


def report(diagnosis: Diagnosis) -> list[str]:
    """Returns the lines of the diagnosis: the problems with evidence and remedy, then the checks that found none."""
    lines = ["; ".join(finding.name for finding in diagnosis.findings) or "healthy"]
    for finding in diagnosis.findings:
        lines += [
            "",
            finding.name,
            f"  what is wrong  {finding.verdict}",
            f"  evidence  {finding.evidence}",
            f"  what to do  {finding.remedy}",
        ]
    if healthy := [finding for finding in diagnosis.checked if not finding.is_problem]:
        lines += ["", "checks without a problem:", *(f"  {finding.name}: {finding.evidence}" for finding in healthy)]
    if diagnosis.skipped:
        lines += ["", "not judged:", *(f"  {reason}" for reason in diagnosis.skipped)]
    return lines
