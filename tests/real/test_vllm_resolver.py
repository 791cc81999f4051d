# timeout: 900, takes: 52
"""A real vLLM reads adapters out of the mount by its own resolver: nobody calls it. PEFT trains two steps, each is published by
wsync.peft, and vLLM answers with the adapter of each step as PEFT's own forward does."""
import concurrent.futures
import json
import sys

import pytest

from package import package
from scenarios import MODEL, Ground
from servers import CLOSE, PROMPTS, VLLM, Refused, distance, need_real
from world import unique

ADAPTER, STEPS, TOKENS, LONG = "actor-lora", (1, 2), 8, 150


class WithResolver(VLLM):
    """vLLM whose own plug-in looks for an unknown model's name below the mount."""

    def __init__(self, mount, *args):
        self.mount = mount
        super().__init__(*args)

    def environment(self):
        return {**super().environment(), "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_LORA_RESOLVER_CACHE_DIR": self.mount.path}

    def complete(self, prompt, tokens, model="m"):
        reply = self.generate(prompt, tokens, logprobs=0, model=model)
        assert reply["finish_reason"] == "length", reply
        return [int(t.split(":")[1]) for t in reply["logprobs"]["tokens"]], reply["logprobs"]["token_logprobs"]


def forward(model, prompt, tokens):
    """PEFT's own greedy tokens and their log probabilities; and each step's lead of the best token over the next."""
    import torch

    ids, said, leads = list(prompt), [], []
    with torch.no_grad():
        for _ in range(tokens):
            scores = model(torch.tensor([ids])).logits[0, -1].float().log_softmax(-1)
            best = scores.topk(2)
            ids.append(int(best.indices[0]))
            said.append(float(best.values[0]))
            leads.append(float(best.values[0] - best.values[1]))
    return ids[len(prompt):], said, leads


def train(folder, pub_of):
    """Two steps of PEFT's; each is offloaded. Returns {step: PEFT's answers}."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "o_proj", "down_proj"], task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    answers = {}
    with pub_of(model) as pub:
        for step in STEPS:
            for prompt in PROMPTS:
                ids = torch.tensor([list(prompt)])
                model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            pub.offload(step)
            pub.wait_published(step)
            answers[step] = [forward(model.eval(), p, TOKENS) for p in PROMPTS]
            model.train()
    assert all(p.dtype == torch.float32 for n, p in model.named_parameters() if "lora_" in n)
    return answers


@pytest.fixture(scope="module")
def ground():
    need_real("peft")
    sys.path.insert(0, package())
    return Ground(VLLM)


@pytest.fixture(scope="module")
def server(ground):
    """On the mount's version 1; it starts while others work."""
    return WithResolver(ground.mount, ground.path(1), *VLLM.uncached, "--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--block-size", "32")


def test_resolver(ground, server):
    "a request for actor-lora/N alone has vLLM load version N, and its answers are PEFT's; one under way ends on the version it began with"
    import wsync

    base = ground.path(1)
    want = train(ground.folder(1), lambda model: wsync.Publisher(ADAPTER, wsync.peft(model, base_name=base), agent=f"unix:{ground.agent.sock}",
                                                                 start_agent=False, rank=0, world_size=1))
    for step in STEPS:
        ground.mount.wait_version(ADAPTER, step)
    assert json.loads(ground.mount.read(ADAPTER, 1, "adapter_config.json"))["base_model_name_or_path"] == base
    server.wait()
    plain = [server.complete(p, TOKENS)[1] for p in PROMPTS]
    farthest = 0.0
    for step in STEPS:
        for prompt, (tokens, said, leads), without in zip(PROMPTS, want[step], plain):
            got, answer = server.complete(prompt, TOKENS, f"{ADAPTER}/{step}")
            same = next((i for i, (a, b) in enumerate(zip(tokens, got)) if a != b), TOKENS)
            assert same == TOKENS or leads[same] < CLOSE, (step, prompt, tokens, got, leads)  # a tie is broken by rounding
            farthest = max(farthest, distance(said[:same], answer[:same]))
            assert farthest < CLOSE, (step, prompt, said, answer)
            assert distance(without, answer) > CLOSE, "the adapter changes nothing"
    print(f"# PEFT's forward and vLLM's answers are at most {farthest:.3f} apart; steps 1 and 2 {distance(want[1][0][1], want[2][0][1]):.2f}")
    # A long answer with the first adapter, while others come with the second.
    alone = server.complete(PROMPTS[0], LONG, f"{ADAPTER}/1")
    ended = True
    for _ in range(10):  # this process may be slow to ask
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            long = pool.submit(server.complete, PROMPTS[0], LONG, f"{ADAPTER}/1")
            others = [server.complete(PROMPTS[1], TOKENS, f"{ADAPTER}/2") for _ in range(4)]
            ended = long.done()
            tokens, answer = long.result()
        assert tokens == alone[0] and distance(answer, alone[1]) < CLOSE, distance(answer, alone[1])
        assert all(distance(a, others[0][1]) < CLOSE for _, a in others)
        if not ended:
            break
    assert not ended, "each long answer ended before the others had come"
    listed = {card["id"]: card["root"] for card in server.call("/v1/models")["data"]}
    assert listed[f"{ADAPTER}/2"] == ground.mount.file(ADAPTER, 2), listed


def test_another_base(ground, server):
    "an adapter of another base is not found, and doctor says why"
    from adapters import adapter
    from world import wsync as command

    server.wait()
    ground.agent.publish("foreign", 1, adapter(1, folder=unique("foreign")))
    ground.mount.wait_version("foreign", 1)
    ground.mount.write("pull 1", "foreign/ctl")
    with pytest.raises(Refused, match="404"):
        server.complete(PROMPTS[0], 1, "foreign/1")
    ground.mount.write(f"engine add v1 vllm {server.url}", f"{MODEL}/ctl")
    said = [row for row in json.loads(command("doctor", "--json", check=False).stdout)["checks"] if row["name"] == "adapter" and "foreign" in row["text"]]
    assert said and said[0]["state"] == "note" and ground.path(1) in said[0]["text"], said
