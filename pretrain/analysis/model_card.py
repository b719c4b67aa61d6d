"""The model card of an export, `README.md` in its folder: the model, its training settings and its scores."""

import json
from pathlib import Path
from typing import Any

from electra_sampler.foundation.markdown_table import markdown_table
from pretrain.huggingface.folders import source_of
from pretrain.huggingface.forms import form_of
from pretrain.method.objective import PredictionConfig
from pretrain.method.registry import objective_class
from pretrain.runs.folder import BOOKKEEPING, RunDescription, flat
from pretrain.runs.log import read_metrics

CHANGES_Q = {"temperature", "forbid_original", "mixture", "importance_weighting"}
"""Settings that change the sampler's distribution, or which one the discriminator learns from."""
TASKS = {
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
LIKELIHOOD = """
from torch.nn.functional import logsigmoid, softplus
from transformers import AutoModelForMaskedLM

# the log-likelihood of a sentence: the sum of log P(token | the others) that generator and discriminator imply
generator = AutoModelForMaskedLM.from_pretrained(FOLDER, subfolder="generator"{code})
{head}
def log_likelihood(sentence, m={mask_share}):  # m: the share of tokens that were masked in training
    ids = tokenizer(sentence, return_tensors="pt").input_ids
    each = torch.arange(1, ids.shape[1] - 1)  # one row for each token, which is masked there
    masked = ids.repeat(len(each), 1)
    masked[each - 1, each] = tokenizer.mask_token_id
    with torch.no_grad():
        d = model(ids).logits.flatten()[each].double()
        p = generator(masked).logits[each - 1, each].double().softmax(-1)
{q}
    of_tokens = each - 1, ids[0, each]
    log_odds = torch.log(m * q_replacement[of_tokens]) - d - torch.log(1 - m + m * q_original[of_tokens])
    return logsigmoid(log_odds).sum()


print(log_likelihood("The quick brown fox jumps over the lazy dog."))
"""
"""The likelihood, `log_likelihood` of finetune/scoring.py, in plain transformers."""
SAMPLER = """
from safetensors.torch import load_file
from transformers.utils import cached_file

sampler = AutoModelForMaskedLM.from_pretrained(FOLDER, subfolder="generator"{code})
head = load_file(cached_file(FOLDER, "generator/sampling_head.safetensors"))
sampler.load_state_dict(head, strict=False)  # its scores are now the sampling head's

"""
SAMPLING_HEADS = {
    "electra": ("", "    q_original = q_replacement = p  # replacements were drawn from the generator"),
    "hp_dist": (
        SAMPLER,
        """        z = sampler(masked).logits[each - 1, each].double()
    q_original = q_replacement = z.softmax(-1)""",
    ),
    "hp_loss": (
        SAMPLER,
        """        z = sampler(masked).logits[each - 1, each].double()
    weight = p * softplus(z)  # replacements were drawn in proportion to it; an original, to p * softplus(-z)
    total = weight.sum(-1, keepdim=True) - p * z  # by the original token
    q_original = (weight - p * z) / total
    of_others = (p / total).sum(-1, keepdim=True) - p / total
    q_replacement = weight * of_others.clamp(min=1e-12) / (1 - p).clamp(min=1e-12)""",
    ),
}
"""By objective: code that loads the sampling head, and that computes the sampler's probabilities of every token as the
original and as a replacement."""


def model_card(run: Path, description: RunDescription, step: int, language: str, license: str, average: int = 1) -> str:
    """Returns the model card in Markdown with Hugging Face's header.

    Scores come from `evaluate.py` for this step or, without it, from the run's own evaluation; there are none of an
    average over several checkpoints.
    """
    config = description.run
    trained = objective_class(config.objective.name)
    architecture = trained.exports["."][0]
    form = form_of(config.model.discriminator(description.vocab_size), architecture)
    code, no_code = (", trust_remote_code=True", ", trust_remote_code=False") if form.code else ("", "")
    auto = f"AutoModelFor{form.classes[architecture].partition('For')[2]}"
    scores = _scores(run, step, isinstance(config.objective, PredictionConfig)) if average == 1 else {}
    mean = f" The weights are the mean of {average} checkpoints up to this step." if average > 1 else ""
    sources = dict(map(source_of, description.init_from))
    base = f"base_model: {json.dumps([*sources])}\n" if sources else ""
    start = f" It started from {' and '.join(f'`{name}`{its}' for name, its in sources.items())}." if sources else ""
    settings = dict(flat(config.model_dump(mode="json", exclude=BOOKKEEPING)))
    data = ", ".join(f"`{Path(folder).name}`" for folder in description.data)
    versions = ", ".join(f"{name} {version}" for name, version in description.versions.items())
    return f"""---
language: {language}
license: {license}
library_name: transformers
pipeline_tag: {TASKS[auto]}
{base}tags: [{", ".join(dict.fromkeys(("electra", config.objective.name)))}]
---

# {trained.title}

Pre-trained for {step:,} of {config.optim.steps:,} steps of {config.batch_size} sequences of at most \
{description.seq_length} word pieces, on {data} (manifest {description.data_sha256[:12]}), \
after "Learning to Sample Replacements for ELECTRA Pre-Training" (Hao et al., Findings of ACL 2021).{start}{mean}

```python
import torch
from transformers import {auto}, AutoTokenizer

FOLDER = "."  # this folder, or its name on the hub
model = {auto}.from_pretrained(FOLDER{code})
tokenizer = AutoTokenizer.from_pretrained(FOLDER{no_code})
{SNIPPETS[auto]}{_likelihood(description, code)}```

It loads with transformers 5.23 or later.{CARRIES if code else ""}

## Settings

{_table(settings)}

## Scores on held-out text

{_table(scores) or "None were taken."}

Made with {versions}.
"""


def _likelihood(description: RunDescription, code: str) -> str:
    """Returns code that computes a sentence's likelihood, if the objective draws replacements as the paper does."""
    objective = description.run.objective
    if objective.name not in SAMPLING_HEADS or objective != type(objective)(**objective.model_dump(exclude=CHANGES_Q)):
        return ""
    head, q = SAMPLING_HEADS[objective.name]
    filled = LIKELIHOOD.replace("{head}", head).replace("{q}", q).replace("{code}", code)
    return filled.replace("{mask_share}", f"{description.mask_share:.6f}")


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
