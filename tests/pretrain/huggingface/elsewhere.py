"""An exported folder used in a process that has torch and transformers, and cannot import this project.

    python tests/pretrain/huggingface/elsewhere.py EXPORT INPUTS RESULTS

It prints what it tried, one line per claim, and writes the outputs; test_export.py compares them.
"""

import sys
import tempfile
from pathlib import Path


class NotInstalled:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.split(".")[0] in ("electra_sampler", "data_prep", "pretrain", "finetune"):
            raise ModuleNotFoundError(f"No module named {name!r}")


sys.meta_path.insert(0, NotInstalled())
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import AutoConfig, AutoTokenizer, pipeline  # noqa: E402

AUTO = (
    *("AutoModel", "AutoModelForPreTraining", "AutoModelForMaskedLM", "AutoModelForSequenceClassification"),
    *("AutoModelForTokenClassification", "AutoModelForQuestionAnswering", "AutoModelForMultipleChoice"),
)


def main(out: str, inputs: str, results: str) -> None:
    trusts = {"trust_remote_code": True}
    given, tensors = torch.load(inputs, weights_only=True), {}
    for name in AUTO:
        folder = f"{out}/generator" if name == "AutoModelForMaskedLM" else out
        model, loading = getattr(transformers, name).from_pretrained(folder, output_loading_info=True, **trusts)
        fresh = {key for key in loading["missing_keys"] if key.startswith("electra.")}
        assert not fresh, f"{name} lacks {fresh}"
        many = {key: value[:, None] for key, value in given.items()} if "Choice" in name else given
        tensors[name] = model.eval()(**many)[0].detach().contiguous()
        tensors |= {f"{name}/{key}": weight.clone() for key, weight in model.state_dict().items()}
        with tempfile.TemporaryDirectory() as again:  # the code travels on
            model.save_pretrained(again)
            assert any(Path(again).glob("modeling_*.py"))
            half = getattr(transformers, name).from_pretrained(again, dtype=torch.bfloat16, device_map="cpu", **trusts)
            assert half.dtype == torch.bfloat16 and half(**many)[0].isfinite().all()
        print(f"loads: {name}")
    model.save_pretrained(f"{results}-again")
    assert AutoConfig.from_pretrained(out, **trusts).model_type == "electra_sampler"

    tokenizer = AutoTokenizer.from_pretrained(out, trust_remote_code=False)
    assert tokenizer.model_max_length == 16 and len(tokenizer("yes no " * 20, truncation=True)["input_ids"]) == 16
    tensors["ids"] = torch.tensor(tokenizer("yes no")["input_ids"])
    print("tokenizer: no code asked for, cuts at the longest position")
    filled = pipeline("fill-mask", model=f"{out}/generator", top_k=1, **trusts)("yes [MASK]")
    features = pipeline("feature-extraction", model=out, **trusts)("yes no")
    assert filled[0]["token"] < 7 and len(features[0]) == 4
    print("pipelines: fill-mask, feature-extraction")
    save_file(tensors, results)
    print(f"transformers {transformers.__version__}")


if __name__ == "__main__":
    main(*sys.argv[1:])
