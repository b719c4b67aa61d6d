"""Show a model at work, on a page to type into: replaced tokens found, proposals, surprisal, two sentences compared.

    python finetune/show.py runs/base
    python finetune/show.py google/electra-small-discriminator --generator google/electra-small-generator

Prints the address of the page, which only this machine can open. Nothing typed there leaves the machine or is kept.
"""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from electra_sampler.foundation.command_line import run_script
from electra_sampler.foundation.config import ConfigError, explained, shown
from finetune.score import ModelOptions, bits, words_of

if TYPE_CHECKING:
    from finetune.scoring import Scorer

MOST = 10
"""Proposals of the generator on the page."""
LONGEST = 512
"""Most tokens of a sentence, which the generator reads anew for each."""
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
"""What the page may do: run its own script, which asks this server."""
MISSING = 404, "text/plain", "there is no such page; open the address that the command printed"


def main(options: ModelOptions) -> None:
    from finetune.scoring import open_scorer

    scorer = open_scorer(options.model, generator=options.generator, mask_share=options.mask_share)
    with Page(scorer) as page, suppress(KeyboardInterrupt):
        print(f"page     {page.address}\nCtrl-C   closes it", flush=True)
        page.serve_forever()
    os._exit(0)  # a thread that still computes would abort an orderly end


class Page(ThreadingHTTPServer):
    """The page of a model, on this machine only, under an address that nobody can guess."""

    def __init__(self, scorer: "Scorer") -> None:
        from jinja2 import Environment

        super().__init__(("127.0.0.1", 0), Answer)
        self.scorer, self.turn = scorer, Lock()
        self.place, self.nonce = f"/{secrets.token_urlsafe()}/", secrets.token_urlsafe()
        template = Environment(autoescape=True).from_string(Path(__file__).with_name("show.html").read_text("utf-8"))
        self.html = template.render(scorer=scorer, lacks=[*lacks(scorer)], nonce=self.nonce)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{self.place}"


class Answer(BaseHTTPRequestHandler):
    """The answer to one request: GET of the page, POST of a sentence to it, or to the number of a token below it."""

    server: Page

    def handle(self) -> None:
        with suppress(ConnectionError):  # the browser may leave before the answer
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Writes nothing."""

    def do_GET(self) -> None:
        page = 200, "text/html", self.server.html
        self.send(*page if self.below() == "" else MISSING)

    def do_POST(self) -> None:
        position = self.below()
        if position is None:
            self.send(*MISSING)
            return
        content = self.rfile.read(int(self.headers["Content-Length"] or 0))
        try:
            with self.server.turn:
                answer = answer_to(self.server.scorer, content, position)
            self.send(200, "application/json", json.dumps(answer))
        except ConfigError as error:
            self.send(400, "text/plain", str(error))

    def below(self) -> str | None:
        """Returns the path below the page's; without the token there is none."""
        place, path = self.server.place, self.path
        known = secrets.compare_digest(path[: len(place)].encode(), place.encode())
        return path[len(place) :] if known else None

    def send(self, status: int, kind: str, text: str) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Security-Policy": POLICY.format(nonce=self.server.nonce),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())


def lacks(scorer: "Scorer") -> Iterator[str]:
    """Yields what the models do not have, and what is missing on the page for it."""
    if scorer.discriminator is None:
        yield "no discriminator: tokens have no color, and the likelihood is the generator's alone"
    if scorer.generator is None:
        yield "no generator: there are no proposals and no surprisal; name one with --generator"
    elif scorer.discriminator is not None and scorer.sampling is None:
        yield "no record of the share masked: the likelihood is the generator's alone; name it with --mask_share"
    if scorer.generator is not None and "sampler_transform" not in scorer.generator:
        yield "no sampling head with its settings: there is no p_S and no estimated loss"
    elif scorer.sampling is not None and scorer.sampling.objective != "hp_loss":
        yield "no estimate of the loss: its sampling head gives p_S itself"


def answer_to(scorer: "Scorer", content: bytes, position: str) -> dict[str, Any]:
    """Returns what the page shows of a sentence or, with a position, of the proposals for that token.

    Raises:
        ConfigError: the sentence has no words, or too many tokens; or no such token.
    """
    with explained("sentence: cannot be read", "send UTF-8 text", UnicodeDecodeError):
        sentence = content.decode()
    _, *ids, _ = all_ids = scorer.ids_of(sentence)
    if not ids or not sentence.strip():
        raise ConfigError(f"sentence: got {shown(sentence)}, expected words; type some")
    if len(all_ids) > LONGEST:
        raise ConfigError(
            f"sentence: {shown(sentence)} has {len(all_ids)} tokens; expected at most {LONGEST} on a page; shorten it"
        )
    spans = scorer.tokenizer(sentence, return_offsets_mapping=True)["offset_mapping"][1:-1]
    ends = [0, *np.maximum.accumulate([end for _, end in spans]).tolist()]
    places = [(end, max(end, start), stop) for (start, _), (end, stop) in zip(spans, pairwise(ends), strict=True)]
    if position:
        if scorer.generator is None or position not in map(str, range(len(ids))):
            raise ConfigError(f"position: got {shown(position)}, expected a token of {len(ids)}, and a generator")
        return {"proposals": [*proposals(scorer, all_ids, int(position) + 1, sentence, places[int(position)])]}
    scores = scorer.scores([sentence])[sentence]
    columns: dict[str, Any] = {
        "token": scorer.tokenizer.convert_ids_to_tokens(ids),
        "gap": [sentence[last:start] for last, start, _ in places],
        "text": [sentence[start:stop] for _, start, stop in places],
    }
    if "discriminator" in scores:
        columns["replaced"] = (-np.expm1(scores["discriminator"])).tolist()
    kind = scorer.kinds[-1]
    answer = {"rest": sentence[ends[-1] :], "total": float(scores[kind].sum()), "of": kind}
    if scorer.generator is not None:
        answer["words"] = [[word, bits(score)] for word, score in words_of(scorer, sentence, scores[kind])]
    return answer | {"tokens": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}


def proposals(
    scorer: "Scorer", ids: tuple[int, ...], position: int, sentence: str, place: tuple[int, int, int]
) -> Iterator[dict[str, Any]]:
    """Yields the generator's most likely tokens at a masked position, and the one that is there, each with the
    sentence that has it in this place: the end of the token before, the start and the end.
    """
    last, start, end = place
    found, here = scorer.propose(ids, position), scorer.tokenizer.decode([ids[position]])
    best = found.p_G_V.topk(min(MOST, len(found.p_G_V))).indices.tolist()
    for token in dict.fromkeys([*best, ids[position]]):
        values = {name: None if value_V is None else float(value_V[token]) for name, value_V in found._asdict().items()}
        text = scorer.tokenizer.decode([token])
        apart = sentence[last:start] or (" " if here.startswith("##") else "")
        joined = text[2:] if text.startswith("##") else apart + text
        changed = sentence if token == ids[position] else sentence[:last] + joined + sentence[end:]
        yield {"token": text, "here": token == ids[position], "sentence": changed, **values}


if __name__ == "__main__":
    run_script(main)
