#!/usr/bin/env bash
# Fills .bundle, which git ignores, with what a call needs and a rented machine without a network lacks:
#   bundle.sh VOCAB TEXT.xz...       call 1 with WHEELS=3.12, the Python there; call 2 with other text, without WHEELS
# What travels, the checkout with .bundle, is at most LIMIT MiB (64); the last texts are left out if they do not fit.
set -euo pipefail
cd "$(dirname "$0")/../../.."
vocab=${1:?"usage: [WHEELS=3.12] bundle.sh VOCAB TEXT.xz..."}
shift
rm -rf .bundle/text .bundle/wheels
mkdir -p .bundle/text
cp "$vocab" .bundle/vocab.txt
if [ -n "${WHEELS:-}" ]; then
    pins=$(grep -Ei '^(deepspeed|pydantic|tqdm|nltk|regex|nanotoken|mwparserfromhell)==' constraints.txt)
    python3 -m pip wheel -q --no-deps -w .bundle/wheels $(grep -i '^deepspeed==' <<< "$pins") hjson
    # pydantic needs its own version of pydantic-core, so its dependencies are resolved; the rest need none that lack there
    for wanted in $(grep -vi '^deepspeed==' <<< "$pins") typing-inspection annotated-types; do
        [[ $wanted = pydantic==* ]] && deps= || deps=--no-deps
        python3 -m pip download -q $deps -d .bundle/wheels --python-version "$WHEELS" --only-binary=:all: \
            --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 "$wanted"
    done
fi
size() { { git ls-files -z --cached --others --exclude-standard; find .bundle -type f -print0; } | xargs -0 du -cb | awk '$2 == "total" {n += $1} END {print n}'; }
for text in "$@"; do
    cp "$text" .bundle/text
    if (($(size) > ${LIMIT:-64} - 1 << 20)); then
        rm ".bundle/text/${text##*/}"
        echo "left out: ${text##*/}"
    fi
done
echo "$(($(size) >> 20)) of ${LIMIT:-64} MiB travel"
