"""Malformed input files made from a seed: damaged, misnamed, or with mixed encodings and formats."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import parquet

from tests.data_prep.packers import PACKERS

FORMATS = ("a.parquet", "a.txt", "a.txt", "wiki_00", "a.jsonl", "a.xml", "wiki_01")  # formats by their proper names
WORDS = (
    *(
        "Ka lo mi.",
        "ne ru",
        "so\n",
        "\n\n",
        "\r\n",
        "\r\n\r\n",
        "\ufeff",
        "\x00",
        "\x85",
        "\u2028",
        "e\u0301",
        "\u0958",
    ),
    *("\ufffd", "\U0001f600", "\u202e", "{{a|b}}", "[[c|d]]", "{|\n|x\n|}", "<ref>y</ref>", "<doc id='1'>", "</doc>"),
    *(
        "<page>",
        "</page>",
        "<text>",
        "</text>",
        '{"text": "Ka"}',
        '"',
        "\\ud800",
        "[",
        "{",
        "&lt;",
        "&#0;",
        "\t",
        "ka" * 200,
    ),
)
NESTED = ("{{", "[[", "<ref>", "{|\n", "'''", "[", '{"text": ', "<doc id='1'>", "<page>", "<!--", "&lt;div&gt;")


def malformed_file(seed: int, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Writes the seed's malformed file into the folder; returns it with options for a build."""
    random = np.random.default_rng(seed)
    form = int(random.integers(0, len(FORMATS)))
    content = _written(form, _texts(random), random)
    for _ in range(random.integers(0, 3) if form else random.integers(0, 2)):
        content = _damaged(content, random)
    suffix = str(random.choice(list(PACKERS)))
    content = PACKERS[suffix](content)
    if random.random() < 0.2:
        content = _damaged(content, random)
    if random.random() < 0.1:
        suffix = str(random.choice(list(PACKERS)))
    name = FORMATS[form] if random.random() < 0.8 else str(random.choice(FORMATS))
    path = folder / f"{name}{suffix}"
    path.write_bytes(content)
    options: dict[str, Any] = {
        "documents": str(random.choice(["blank_line", "file"])),
        "dedup": str(random.choice(["none", "exact", "near"])),
        "shard_mb": float(random.choice([0.0002, 0.001, 1.0])),
        "held_out": float(random.choice([0.0, 0.3])),
    }
    return path, options


def _texts(random: np.random.Generator) -> list[str]:
    if random.random() < 0.15:
        return [str(random.choice(NESTED)) * int(random.integers(1, 3000))]
    return [" ".join(random.choice(WORDS, random.integers(0, 60))) for _ in range(random.integers(0, 12))]


def _written(form: int, texts: list[str], random: np.random.Generator) -> bytes:
    """The texts in one of the formats and in a random encoding."""
    if form == 0:
        table = io.BytesIO()
        column = str(random.choice(["text", "text", "body"]))
        parquet.write_table(pyarrow.table({column: [*texts, None]}), table, row_group_size=3)
        return table.getvalue()
    if form == 1:
        return random.bytes(int(random.integers(0, 5000)))
    written = {
        2: "\n\n".join(texts),
        3: "\n".join(f'<doc id="{n}" url="u" title="t">\n{text}\n</doc>' for n, text in enumerate(texts)),
        4: "\n".join(json.dumps({str(random.choice(["text", "text", "body"])): text}) for text in texts),
        5: "<mediawiki>" + "".join(f"<page><ns>0</ns><text>{text}</text></page>\n" for text in texts) + "</mediawiki>",
        6: "\n\n".join(texts) + '\n<doc id="1">\n' + "\n".join(texts) + '{"text": "x"}',
    }[form]
    encoding = str(random.choice(["utf-8", "utf-8", "utf-8", "latin-1", "utf-16", "utf-8-sig"]))
    return written.encode(encoding, "replace")


def _damaged(content: bytes, random: np.random.Generator) -> bytes:
    if not content:
        return content
    start, end = sorted(random.integers(0, len(content) + 1, 2).tolist())
    changed = bytearray(content)
    for place in random.integers(0, len(content), 5).tolist():
        changed[place] ^= int(random.integers(1, 256))
    forms = (
        content[:end],
        content[start:],
        content[:start] + content[end:],
        content[:start] + random.bytes(int(random.integers(1, 40))) + content[start:],
        content[:end] + content[start:end] + content[end:],
        bytes(changed),
    )
    return forms[random.integers(len(forms))]
