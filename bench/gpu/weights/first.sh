#!/usr/bin/env bash
# Call 1, at most 170 s: installs, keeps the text, measures steps, checks the bits of CUDA graphs, profiles base.
#   OUT=FOLDER bash bench/gpu/weights/first.sh       with .bundle; results in OUT, all else stays in ROOT
set -o pipefail
: "${ROOT:=$HOME/weights}" "${DEVICE:=cuda}" "${BUNDLE:=.bundle}"
export PYTHONUNBUFFERED=1 TRITON_INTERPRET=0 PYTHONPATH=$ROOT/site
mkdir -p "$ROOT/text" "$ROOT/vocab"
[ ! -d "$BUNDLE/wheels" ] || python3 -m pip install -q --no-index --no-deps --no-compile --target "$ROOT/site" "$BUNDLE"/wheels/*.whl
cp "$BUNDLE"/text/*.xz "$ROOT/text"
cp "$BUNDLE/vocab.txt" "$ROOT/vocab"
{
    timeout 60 python3 bench/gpu/weights/steps.py "$ROOT/steps.json" "$DEVICE"
    timeout 40 python3 -m pytest -q -m gpu tests/gpu -k "cuda_graphs and electra and (bf16 or fp16)"
    timeout 48 python3 bench/gpu.py --output "$OUT/gpu" --work "$ROOT/work" --device "$DEVICE" --stages d --minutes .75
} 2>&1 | tee "$OUT/log"
cp "$ROOT/steps.json" "$OUT"
