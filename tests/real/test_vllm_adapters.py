# timeout: 900, takes: 70
"""A real vLLM on its CPU with adapters that PEFT made: loaded, listed, asked, unloaded and refused by the calls of wsync's table, and its
answers beside those of PEFT's own forward."""
import json
import os
from concurrent import futures

import pytest
from safetensors.torch import load_file, save_file

from peft_adapters import NEAR, RANK, call, forward, make_adapter
from scenarios import Ground
from servers import CLOSE, PROMPTS, VLLM, distance
from world import wait_for


class World(Ground):
    def __init__(self):
        super().__init__(VLLM)
        self.server = Adapting(self.path(1), *VLLM.uncached, "--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", "2")
        self.plain = VLLM(self.folder(1), *VLLM.uncached)
        for server in (self.server, self.plain):
            server.wait()


class Adapting(VLLM):
    def environment(self):
        return {**super().environment(), "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}


def score(server, adapter, prompt):
    reply = server.generate(prompt, 1, prompt_logprobs=0, model=adapter)["prompt_logprobs"]
    return [of[str(token)]["logprob"] for token, of in zip(prompt[1:], reply[1:])]


@pytest.fixture(scope="module")
def w():
    return World()


def test_loaded(w):
    "each adapter answers as PEFT's forward says, over a load of its base too; a name is one path's for ever"
    one, two = (make_adapter(w.folder(1), seed) for seed in (1, 2))
    assert f"rank={RANK}" in call(w.server, "probe")[0]
    assert call(w.server, "list") == []
    assert call(w.server, "load", "lora@1", one) == [] and call(w.server, "load", "lora@2", two) == []
    assert call(w.server, "list") == [f"lora@1 {one}", f"lora@2 {two}"]
    base = w.server.score(PROMPTS[2])
    answers = {}
    for name, path in (("lora@1", one), ("lora@2", two)):
        answers[name] = score(w.server, name, PROMPTS[2])
        assert distance(answers[name], forward(w.folder(1), path, PROMPTS[2])) < NEAR
        assert distance(answers[name], base) > 5 * NEAR
    assert call(w.server, "load", "lora@1", one) == []  # a try whose first answer was lost
    assert call(w.server, "load", "lora@1", two)[0] == "EREMOTEIO" and score(w.server, "lora@1", PROMPTS[2]) == answers["lora@1"]
    w.server.reload(w.path(2))
    assert distance(score(w.server, "lora@2", PROMPTS[2]), forward(w.folder(2), two, PROMPTS[2])) < NEAR
    w.server.reload(w.path(1))
    assert score(w.server, "lora@2", PROMPTS[2]) == answers["lora@2"]
    assert call(w.server, "unload", "lora@1") == [] and call(w.server, "unload", "lora@1") == []
    assert call(w.server, "list") == [f"lora@2 {two}"]


def test_refused(w):
    "a rank that is too big, a DoRA, modules that the model lacks, no folder: each with vLLM's reason, and it is not listed"
    before = call(w.server, "list")
    for path, why in ((make_adapter(w.folder(1), 3, r=2 * RANK), "max_lora_rank"), (make_adapter(w.folder(1), 3, use_dora=True), "DoRA"),
                      ("/nonexistent", "nonexistent"), (renamed(make_adapter(w.folder(1), 3)), "target modules")):
        name, sentence = call(w.server, "load", "lora@3", path)
        assert name == "EREMOTEIO" and why in sentence, sentence
        assert call(w.server, "list") == before


def renamed(path):
    """The adapter with a module that the model does not have."""
    with open(os.path.join(path, "adapter_config.json")) as f:
        config = json.load(f)
    with open(os.path.join(path, "adapter_config.json"), "w") as f:
        json.dump({**config, "target_modules": ["elsewhere"]}, f)
    file = os.path.join(path, "adapter_model.safetensors")
    save_file({name.replace("q_proj", "elsewhere"): t for name, t in load_file(file).items()}, file, metadata={"format": "pt"})
    return path


def test_mounted(w):
    "versions that a mount loads answer under their own names as PEFT's forward says, over a switch of the base; a request ends on the adapter that it began with"
    adapters, tokens = {n: make_adapter(w.folder(1), seed) for n, seed in ((1, 2), (2, 1), (3, 2))}, 100
    assert call(w.server, "unload", "lora@2") == []  # somebody else's name would not become a version's
    w.engine("a", w.server, "adapters=lora:2")
    w.switch(1)
    names = lambda: {line.split()[0] for line in call(w.server, "list") if line.startswith("lora@")}
    for n, path in adapters.items():
        w.agent.publish("lora", n, path)
        w.mount.wait_version("lora", n)
        if n == 3:
            alone = w.server.generate(PROMPTS[1], tokens, model="lora@2")["text"]
            with futures.ThreadPoolExecutor() as pool:
                begun = pool.submit(w.server.generate, PROMPTS[1], tokens, model="lora@2")
                w.mount.write(n, "lora/version")
                assert begun.result()["text"] == alone
        else:
            w.mount.write(n, "lora/version")
        assert distance(score(w.server, f"lora@{n}", PROMPTS[2]), forward(w.folder(1), path, PROMPTS[2])) < NEAR
    wait_for(lambda: names() == {"lora@2", "lora@3"}, "the oldest to be unloaded")
    before = score(w.server, "lora@3", PROMPTS[2])
    w.switch(2)
    assert names() == {"lora@2", "lora@3"}
    assert distance(score(w.server, "lora@3", PROMPTS[2]), forward(w.folder(2), adapters[3], PROMPTS[2])) < NEAR
    w.switch(1)
    assert score(w.server, "lora@3", PROMPTS[2]) == before
    w.agent.publish("lora", 4, make_adapter(w.folder(1), 14, r=2 * RANK))
    w.mount.wait_version("lora", 4)
    assert w.refused("4", "lora/version") == "EPROTO" and names() == {"lora@2", "lora@3"}
    assert "rank 16, and the engine takes 8 at most" in w.mount.text("lora/last_error"), w.mount.text("lora/last_error")


def test_without(w):
    "a vLLM that was not started for adapters: how to start it"
    for words in (("list",), ("load", "lora@1", "/x"), ("unload", "lora@1")):
        name, sentence = call(w.plain, *words)
        assert name == "EPROTO" and "--enable-lora" in sentence and "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in sentence, sentence
    name, sentence = call(w.plain, "draft", "/x")
    assert name == "EPROTO" and "--weight-transfer-config" in sentence, sentence
    assert call(w.plain, "resume") == [] and w.plain.score(PROMPTS[0])  # it was paused for it, and goes on
