#!/usr/bin/env bash
# Trains one model for about SECONDS_ (225) and leaves its run, without Adam's state, in OUT, in parts of 15 MiB:
#   OUT=FOLDER bash bench/gpu/weights/train.sh NAME ROW [SETTING...]
# There: cat OUT/NAME.tar.* | tar -x -C runs; then export.py, evaluate.py and fine-tuning take runs/NAME.
set -o pipefail
: "${ROOT:=$HOME/weights}" "${DEVICE:=cuda}" "${SECONDS_:=225}" "${PRESET:=small}" "${BATCH:=256}"
export PYTHONUNBUFFERED=1 PYTHONPATH=$ROOT/site:$PWD
name=$1 row=$2 run=$ROOT/$1
shift 2
# All models take the same number of steps: so many that .88 of the time, at the step measured and 2 ms, holds them.
[ -f "$ROOT/steps" ] || python3 - "$ROOT" "$SECONDS_" "$PRESET" "$BATCH" <<'PYTHON'
import json, pathlib, sys
root, seconds, size = pathlib.Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
measured = json.loads((root / "steps.json").read_text())
step = next(figures["seconds"] for name, figures in measured.items() if name.split()[:3:2] == size)
(root / "steps").write_text(str(max(60, int(0.88 * seconds / (step + 0.002)))))
PYTHON
steps=$(cat "$ROOT/steps")
canary() { # a model that is still on the unigram plateau after a third of the time is not worth the rest
    sleep $((SECONDS_ / 3))
    tail -n 1 "$run/metrics.jsonl" | python3 -c '
import json, sys
record = json.loads(sys.stdin.readline() or "{}")
print("canary: step", record.get("step"), "MLM accuracy", record.get("mlm_accuracy"))
sys.exit(record.get("mlm_accuracy", 0) < 0.08)' || [ "$DEVICE" = cpu ] || touch "$run/stop"
}
{
    canary &
    timeout -s TERM $((SECONDS_ + 25)) python3 pretrain/run.py --preset "$PRESET" --row "$row" --data "$ROOT/shards" --output "$run" --set \
        model.relative_bias_init=local model.dropout=0 model.attention_dropout=0 optim.lr=1e-3 "optim.steps=$steps" \
        "optim.warmup_steps=$((steps / 14))" "batch_size=$BATCH" "log_every=$((steps / 24))" histogram_every=1000000 \
        evaluate_every=1000000 checkpoint_every=1000000 checkpoint_minutes=60 keep_checkpoints=1 "$@"
    python3 - "$run" <<'PYTHON'
import pathlib, sys
from safetensors.torch import save_file
from pretrain.engine.checkpoint import MARKER, OPTIMIZER, marker_of
checkpoint = max((pathlib.Path(sys.argv[1]) / "checkpoints").glob("step-????????"))
save_file({}, checkpoint / OPTIMIZER)
(checkpoint / MARKER).write_bytes(marker_of(checkpoint))
PYTHON
    tar -c -C "$ROOT" --exclude tensorboard "$name" | split -b 15m - "$OUT/$name.tar."
    ls -l "$OUT"
} 2>&1 | tee "$OUT/$name.log"
