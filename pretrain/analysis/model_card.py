"""The model card of an export, `README.md` in its folder: the model, its training settings and its scores."""

import json
from pathlib import Path
from typing import Any

from foundation.markdown_table import markdown_table
from pretrain.huggingface.modernbert import ARCHITECTURES
from pretrain.method.objective import PredictionConfig
from pretrain.method.registry import objective_class
from pretrain.model.config import ElectraModelConfig
from pretrain.training.run_folder import BOOKKEEPING, RunDescription, flat
from pretrain.training.run_log import read_records

TASKS = {
    "AutoModel": "feature-extraction",
    "AutoModelForPreTraining": "feature-extraction",
    "AutoModelForTokenClassification": "token-classification",
    "AutoModelForMaskedLM": "fill-mask",
}
"""Pipeline tag on Hugging Face's hub, by model class."""
SCORES = {
    "mlm_loss": "MLM cross-entropy, nats per masked position",
    "mlm_accuracy": "MLM accuracy",
    "discriminator_loss": "discriminator loss, nats per position",
    "replaced_share": "share of positions replaced",
    "accuracy_masked": "detection accuracy, masked positions",
    "accuracy_all": "detection accuracy, all positions",
    "auc_all": "detection AUC, all positions",
}


CARRIES = """ Attention has a relative position bias, which transformers' own ELECTRA lacks:
the model's code is `modeling_electra_sampler.py` in this folder, run only where `trust_remote_code=True` allows it.
The tokenizer needs no code. Without it `AutoTokenizer` warns of the model type, because it reads `config.json` first,
but loads the right tokenizer."""
SNIPPETS = {
    "AutoModel": """
inputs = tokenizer("The quick brown fox jumps over the lazy dog.", return_tensors="pt")
with torch.no_grad():
    states = model(**inputs).last_hidden_state  # [1, length, hidden size]
print(states.mean(1))
""",
    "AutoModelForPreTraining": """
inputs = tokenizer("The quick brown fox jumps over the lazy dog.", return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0]
for token, logit in zip(inputs.tokens(), logits):
    print(f"{token:>12} replaced with probability {logit.sigmoid():.2f}")
""",
    "AutoModelForTokenClassification": """
inputs = tokenizer("The quick brown fox jumps over the lazy dog.", return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[0, :, 0]
for token, logit in zip(inputs.tokens(), logits):
    print(f"{token:>12} replaced with probability {logit.sigmoid():.2f}")
""",
    "AutoModelForMaskedLM": """
inputs = tokenizer(f"The capital of France is {tokenizer.mask_token}.", return_tensors="pt")
with torch.no_grad():
    logits = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
print(tokenizer.convert_ids_to_tokens(logits.topk(5).indices[0]))
""",
}


def model_card(
    run: Path,
    description: RunDescription,
    step: int,
    language: str,
    license: str,
    as_mpnet: bool = False,
    average: int = 1,
) -> str:
    """Returns the model card in Markdown with Hugging Face's header.

    Scores come from `evaluate.py` for this step or, without it, from the run's own evaluation; there are none of an
    average over several checkpoints.
    """
    config = description.run
    carries_code = isinstance(config.model, ElectraModelConfig) and config.model.relative_position and not as_mpnet
    code, no_code = (", trust_remote_code=True", ", trust_remote_code=False") if carries_code else ("", "")
    trained = objective_class(config.objective.name)
    auto = trained.exports["."][0]
    if config.model.backbone == "modern":
        auto = ARCHITECTURES[auto]
    auto = f"AutoModelFor{auto.partition('For')[2]}"
    if as_mpnet:
        auto = auto.removesuffix("ForPreTraining")  # MPNet has no head of that kind
    scores = _scores(run, step, isinstance(config.objective, PredictionConfig)) if average == 1 else {}
    mean = f" The weights are the mean of {average} checkpoints up to this step." if average > 1 else ""
    settings = dict(flat(config.model_dump(mode="json", exclude=BOOKKEEPING)))
    data = ", ".join(f"`{Path(folder).name}`" for folder in description.data)
    versions = ", ".join(f"{name} {version}" for name, version in description.versions.items())
    return f"""---
language: {language}
license: {license}
library_name: transformers
pipeline_tag: {TASKS[auto]}
tags: [electra, {config.objective.name}]
---

# {trained.title}

Pre-trained for {step:,} of {config.optim.steps:,} steps of {config.batch_size} sequences of at most \
{description.seq_length} word pieces, on {data} (manifest {description.data_sha256[:12]}), \
after "Learning to Sample Replacements for ELECTRA Pre-Training" (Hao et al., Findings of ACL 2021).{mean}

```python
import torch
from transformers import {auto}, AutoTokenizer

FOLDER = "."  # this folder, or its name on the hub
model = {auto}.from_pretrained(FOLDER{code})
tokenizer = AutoTokenizer.from_pretrained(FOLDER{no_code})
{SNIPPETS[auto]}```

It loads with transformers 5.{CARRIES if code else ""}

## Settings

{_table(settings)}

## Scores on held-out text

{_table(scores) or "None were taken."}

Made with {versions}.
"""


def _scores(run: Path, step: int, predicts: bool) -> dict[str, Any]:
    """Returns the scores of this step; MLM scores only if the model `predicts`."""
    evaluated = run / "evaluation" / "metrics.json"
    found = [record for record in read_records(run, "held_out") if record["step"] == step]
    if evaluated.is_file():
        values = json.loads(evaluated.read_text())
        found += [values] if values.get("step") == step else []
    scores = {key: found[-1].get(key) for key in SCORES if found and (predicts or not key.startswith("mlm"))}
    return {SCORES[key]: f"{score:.4f}" for key, score in scores.items() if score is not None}


def _table(rows: dict[str, Any]) -> str:
    return "\n".join(markdown_table(("", ""), ((key, str(value)) for key, value in rows.items()))) if rows else ""
