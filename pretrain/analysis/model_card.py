"""The model card of an export, `README.md` in its folder: the model, its training settings and its scores."""

import json
from pathlib import Path
from typing import Any

from electra_sampler.foundation.markdown_table import markdown_table
from pretrain.huggingface.folders import source_of, written_card
from pretrain.huggingface.forms import form_of
from pretrain.huggingface.stored import LEARNED, Sampling
from pretrain.method.objective import PredictionConfig
from pretrain.method.registry import objective_class
from pretrain.runs.folder import BOOKKEEPING, RunDescription, flat
from pretrain.runs.log import read_metrics

SCORES = {
    "mlm_loss": "MLM cross-entropy, nats per masked position",
    "mlm_accuracy": "MLM accuracy",
    "discriminator_loss": "discriminator loss, nats per position",
    "replaced_share": "share of positions replaced",
    "accuracy_masked": "detection accuracy, masked positions",
    "accuracy_all": "detection accuracy, all positions",
    "auc_all": "detection AUC, all positions",
}


def model_card(run: Path, description: RunDescription, step: int, language: str, license: str, average: int = 1) -> str:
    """Returns the model card in Markdown with Hugging Face's header.

    Scores come from `evaluate.py` for this step or, without it, from the run's own evaluation; there are none of an
    average over several checkpoints.
    """
    run_config, objective = description.run, description.run.objective
    trained = objective_class(objective.name)
    architecture = trained.exports["."][0]
    form = form_of(run_config.model.discriminator(description.vocab_size), architecture)
    sources = dict(map(source_of, description.init_from))
    scores = _scores(run, step, isinstance(objective, PredictionConfig)) if average == 1 else {}
    # draws replacements as the paper does
    as_in_paper = objective == type(objective)(**objective.model_dump(exclude=set(Sampling.model_fields)))
    return written_card(
        Path(__file__).with_suffix(".jinja"),
        run=run_config,
        description=description,
        title=trained.title,
        step=step,
        average=average,
        language=language,
        license=license,
        task=form.classes[architecture].partition("For")[2],
        code=", trust_remote_code=True" if form.code else "",
        sampler=objective.name if as_in_paper and objective.name in ("electra", *LEARNED) else "",
        sources=sources,
        base_model=json.dumps([*sources]),
        data=", ".join(f"`{Path(folder).name}`" for folder in description.data),
        settings=_table(dict(flat(run_config.model_dump(mode="json", exclude=BOOKKEEPING)))),
        scores=_table(scores),
        versions=", ".join(f"{name} {version}" for name, version in description.versions.items()),
    )


def _scores(run: Path, step: int, predicts: bool) -> dict[str, Any]:
    """Returns the scores of this step; MLM scores only if the model `predicts`."""
    evaluated = run / "evaluation" / "metrics.json"
    found = [record for record in read_metrics(run, "held_out") if record["step"] == step]
    if evaluated.is_file():
        values = json.loads(evaluated.read_text())
        found += [values] if values.get("step") == step else []
    scores = {key: found[-1].get(key) for key in SCORES if found and (predicts or not key.startswith("mlm"))}
    return {SCORES[key]: f"{score:.4f}" for key, score in scores.items() if score is not None}


def _table(rows: dict[str, Any]) -> str:
    return "\n".join(markdown_table(("", ""), ((key, str(value)) for key, value in rows.items()))) if rows else ""
