"""The page of an exported model, `README.md` in its folder: what it is, how it was trained, what it scored."""

import json
from pathlib import Path
from typing import Any

from foundation.markdown_table import markdown_table
from pretrain.method.objectives import objective_class
from pretrain.training.run_folder import BOOKKEEPING, RunDescription, flat
from pretrain.training.run_log import read_records

TASKS = {
    "AutoModel": "feature-extraction",
    "AutoModelForPreTraining": "feature-extraction",
    "AutoModelForMaskedLM": "fill-mask",
}
"""What Hugging Face's hub calls the use of a model."""
SCORES = {
    "mlm_loss": "MLM cross-entropy, nats a masked position",
    "mlm_accuracy": "MLM accuracy",
    "discriminator_loss": "discriminator loss, nats a position",
    "replaced_share": "share of positions replaced",
    "accuracy_masked": "detection accuracy, masked positions",
    "accuracy_all": "detection accuracy, all positions",
    "auc_all": "detection AUC, all positions",
}


def model_card(run: Path, description: RunDescription, step: int, as_mpnet: bool = False) -> str:
    """Markdown with Hugging Face's header; scores are those of `evaluate.py`, or else of the run's own evaluation."""
    config = description.run
    trusts = "" if as_mpnet or not config.model.relative_position else ", trust_remote_code=True"
    trained = objective_class(config.objective.name)
    auto = trained.exports["."][0].replace("Electra", "AutoModel")
    if as_mpnet:
        auto = auto.removesuffix("ForPreTraining")  # MPNet has no head of that kind
    settings = dict(flat(config.model_dump(mode="json", exclude=BOOKKEEPING)))
    data = ", ".join(f"`{Path(folder).name}`" for folder in description.data)
    versions = ", ".join(f"{name} {version}" for name, version in description.versions.items())
    return f"""---
library_name: transformers
pipeline_tag: {TASKS[auto]}
tags: [electra, {config.objective.name}]
---

# {trained.title}

Pre-trained for {step:,} of {config.optim.steps:,} steps of {config.batch_size} sequences of at most \
{description.seq_length} word pieces, on {data} (manifest {description.data_sha256[:12]}), \
after "Learning to Sample Replacements for ELECTRA Pre-Training" (Hao et al., Findings of ACL 2021).

```python
from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained(FOLDER{trusts})
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
```

## Settings

{_table(settings)}

## Scores on held-out text

{_table(_scores(run, step)) or "None were taken."}

Made with {versions}.
"""


def _scores(run: Path, step: int) -> dict[str, Any]:
    """Of this step alone: what an earlier checkpoint scored is another model's."""
    evaluated = run / "evaluation" / "metrics.json"
    found = [record for record in read_records(run, "held_out") if record["step"] == step]
    if evaluated.is_file():
        values = json.loads(evaluated.read_text())
        found += [values] if values.get("step") == step else []
    return {label: f"{found[-1][key]:.4f}" for key, label in SCORES.items() if found and found[-1].get(key) is not None}


def _table(rows: dict[str, Any]) -> str:
    return "\n".join(markdown_table(("", ""), ((key, str(value)) for key, value in rows.items()))) if rows else ""
