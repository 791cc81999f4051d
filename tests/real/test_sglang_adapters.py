# timeout: 900, takes: 65
"""A real SGLang on its CPU with adapters that PEFT made: loaded, listed, asked, unloaded and refused by the calls of wsync's table."""
import threading
import time

import pytest

from peft_adapters import NEAR, RANK, call, forward, make_adapter
from scenarios import Ground
from servers import CLOSE, PROMPTS, SGLang, distance

LORA = ("--lora-backend", "torch_native", "--enable-lora", "--max-lora-rank", str(RANK), "--lora-target-modules", "q_proj", "v_proj", "down_proj",
        "--max-loras-per-batch", "3")


def score(server, adapter, prompt):
    said = server.generate(prompt, 1, logprob_start_len=0, lora_path=adapter)["meta_info"]["input_token_logprobs"]
    return [p for p, *_ in said[1:]]


@pytest.fixture(scope="module")
def w():
    w = Ground(SGLang)
    w.server, w.plain = SGLang(w.path(1), *SGLang.uncached, *LORA), SGLang(w.folder(1), *SGLang.uncached)
    for server in (w.server, w.plain):
        server.wait()
    w.one, w.two = (make_adapter(w.folder(1), seed) for seed in (1, 2))
    return w


def test_loaded(w):
    "each adapter answers as PEFT's forward says; a name is one path's for ever, also after an unload"
    assert f"rank={RANK}" in call(w.server, "probe")[0]
    assert call(w.server, "list") == []
    assert call(w.server, "load", "lora@1", w.one) == [] and call(w.server, "load", "lora@2", w.two) == []
    assert call(w.server, "list") == [f"lora@1 {w.one}", f"lora@2 {w.two}"]
    base, answers = w.server.score(PROMPTS[2]), {}
    for name, path in (("lora@1", w.one), ("lora@2", w.two)):
        answers[name] = score(w.server, name, PROMPTS[2])
        assert distance(answers[name], forward(w.folder(1), path, PROMPTS[2])) < NEAR
        assert distance(answers[name], base) > 5 * NEAR
    assert call(w.server, "load", "lora@1", w.one) == []  # a try whose first answer was lost
    assert call(w.server, "load", "lora@1", w.two)[0] == "EREMOTEIO"
    assert call(w.server, "unload", "lora@2") == [] and call(w.server, "unload", "lora@2") == []
    assert call(w.server, "list") == [f"lora@1 {w.one}"]
    assert score(w.server, "lora@2", PROMPTS[2]) == answers["lora@2"]  # silently loaded again, from its old path
    assert call(w.server, "list") == [f"lora@1 {w.one}", f"lora@2 {w.two}"]


def test_unload_waits(w):
    "an unload ends after the requests that use the adapter"
    assert call(w.server, "load", "lora@3", w.one) == []
    for pause in (1, 0.4, 0.2, 0.1, 0.05):  # until a request is caught under way, however fast the machine is
        ended = []
        asking = threading.Thread(target=lambda: ended.append((w.server.generate(PROMPTS[0], 150, lora_path="lora@3"), time.monotonic())))
        asking.start()
        time.sleep(pause)
        if not ended:
            break
        asking.join(90)
    assert not ended and call(w.server, "unload", "lora@3") == []
    unloaded = time.monotonic()
    asking.join(90)
    assert len(ended[0][0]["output_ids"]) == 150 and ended[0][1] < unloaded + 1
    assert not any(line.startswith("lora@3 ") for line in call(w.server, "list"))


def test_refused(w):
    "a rank that is too big, a DoRA, no folder: each with SGLang's reason, and it is not listed; one that has no adapters says how to start it"
    before = call(w.server, "list")
    for path in (make_adapter(w.folder(1), 3, r=2 * RANK), make_adapter(w.folder(1), 3, use_dora=True), "/nonexistent"):
        name, sentence = call(w.server, "load", "lora@9", path)
        assert name == "EREMOTEIO" and "lora@9" in sentence, sentence
        print(f"# {sentence[:200]}")
        assert call(w.server, "list") == before
    for words in (("list",), ("load", "lora@1", "/x"), ("unload", "lora@1")):
        name, sentence = call(w.plain, *words)
        assert name == "EPROTO" and "--enable-lora" in sentence, sentence
