"""Tokenizes the lines of a file with Hugging Face `tokenizers`' encode_batch: a peer in bench/data_prep.py.

python bench/peers/hugging_face.py TOKENIZER.json TEXT
"""

import sys
from pathlib import Path

from tokenizers import Tokenizer

_LINES_AT_ONCE = 2000


def main(tokenizer_file: str, text_file: str) -> None:
    tokenizer = Tokenizer.from_file(tokenizer_file)
    lines = Path(text_file).read_text("utf-8").splitlines()
    for first in range(0, len(lines), _LINES_AT_ONCE):
        tokenizer.encode_batch(lines[first : first + _LINES_AT_ONCE], add_special_tokens=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
