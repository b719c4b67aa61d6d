#!/usr/bin/env bash
# Call 2, at most 340 s: builds shards of all the text, then trains the method.
#   OUT=FOLDER bash bench/gpu/weights/second.sh                              with a second .bundle of text
# Call 3, at most 290 s, the control: OUT=FOLDER bash bench/gpu/weights/train.sh p_G ELECTRA objective.gamma=1
: "${ROOT:=$HOME/weights}" "${BUNDLE:=.bundle}"
export ROOT
export PYTHONUNBUFFERED=1 PYTHONPATH=$ROOT/site
cp "$BUNDLE"/text/*.xz "$ROOT/text"
python3 data_prep/build_shards.py --input "$ROOT/text/*.xz" --vocab "$ROOT/vocab" --output "$ROOT/shards" \
    --documents file --seq_length 128 --packing full --mask_copies 6 --held_out .002
bash bench/gpu/weights/train.sh hp_loss "HP_Loss + Focal"
