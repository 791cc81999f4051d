# timeout: 900, takes: 80
"""A real vLLM on its CPU that guesses with a draft model: how many guesses it accepts says which weights the draft model has. With those of
the target all of them are right, with another version's hardly any."""
import json
import re

import pytest

from peft_adapters import call
from scenarios import Ground
from servers import PROMPTS, VLLM, WithWsync, installed

TOKENS = 24


class Drafting(WithWsync):
    def accepted(self):
        """The part of the guesses that were right, in a few answers."""
        before = self.counts()
        for prompt in PROMPTS:
            self.complete(prompt, TOKENS)
        guessed, right = (b - a for a, b in zip(before, self.counts()))
        assert guessed > 0
        return right / guessed

    def counts(self):
        page = self.call("/metrics")
        return [sum(float(n) for n in re.findall(rf"^vllm:spec_decode_num_{what}_tokens_total\S* (\S+)$", page, re.M)) for what in ("draft", "accepted")]


@pytest.fixture(scope="module")
def w():
    w = Ground(VLLM)
    WithWsync.target = installed()
    w.server = Drafting(w.path(1), *VLLM.uncached, "--weight-transfer-config", '{"backend": "wsync"}', "--speculative-config",
                        json.dumps({"method": "draft_model", "model": w.folder(2), "num_speculative_tokens": 2})).wait()
    return w


def load(w, *words):
    for step in (("pause",), words, ("resume",)):
        assert call(w.server, *step) == [], step


def test_draft(w):
    "the draft model is loaded by itself, is frozen while the target is loaded, and is gone back to where a load of it fails"
    assert "draft=unchanged loads_draft=1" in call(w.server, "probe")[0]
    answers = w.server.answers()
    assert w.server.accepted() < 0.5
    load(w, "draft", w.path(1))
    assert w.server.accepted() > 0.9 and w.server.answers() == answers
    w.server.reload(w.path(2))
    assert w.server.accepted() < 0.5  # the draft model has version 1 still
    assert call(w.server, "pause") == []
    name, sentence = call(w.server, "draft", w.folder("missing"))
    assert name == "EREMOTEIO" and "mlp.down_proj" in sentence, sentence
    assert call(w.server, "resume") == []
    w.server.reload(w.path(1))
    assert w.server.accepted() > 0.9 and w.server.answers() == answers
    load(w, "draft", w.path(2))
    assert w.server.accepted() < 0.5 and w.server.answers() == answers
