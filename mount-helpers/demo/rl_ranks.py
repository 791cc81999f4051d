"""The trainer of demo-rl.py: FSDP2 over gloo ranks, REINFORCE on what a real engine samples. Started by torchrun.

    rl_ranks.py ENGINE URL MOUNT FOLDER STEPS HOLD LEARNING_RATE

Of wsync it knows Publisher: offload() after each step, wait_loaded() before the next samples. ENGINE is vllm or
sglang; FOLDER is where the model's config and tokenizer are put; in step HOLD the version is held back: MOUNT's policy
is `manual` for its time. Rank 0 prints a line of JSON for every version that was sampled from.

The reward: 1 for each sampled token with a vowel in its text, 0 for the others; its baseline is the mean of the group
of samples of one prompt. Masters are float32; forward and backward use FSDP's bf16 copies of them, rounded as the published
file is, so that log probabilities differ from the engine's by the noise of bf16 arithmetic and by nothing else."""
import datetime
import json
import os
import sys
import time
import traceback
import urllib.error
import urllib.request

import torch
import torch.distributed as dist
from checkpoints import CONFIG, tokenizer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import Qwen3Config, Qwen3ForCausalLM

import wsync

MODEL = "actor"
PROMPTS, GROUP, PROMPT_TOKENS, TOKENS = 8, 8, 8, 16
BODY_RATE = 3e-6  # of all but lm_head: as in runs of large models, few bf16 elements of it change in a step
START_SECONDS, ASK_SECONDS, LOAD_SECONDS = 420, 90, 120
VOWELS = set("aeiouAEIOU")


def ask(url, body=None):
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=ASK_SECONDS) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as e:
        raise RuntimeError(f"the engine refused {url}: {e.code} {e.read().decode(errors='replace')[:600]}") from None
    except OSError as e:
        raise RuntimeError(f"the engine at {url} does not answer: {e}") from None


def sample_vllm(url, prompts):
    reply = ask(f"{url}/v1/completions", {
        "model": "m", "prompt": prompts, "max_tokens": TOKENS, "temperature": 1, "top_p": 1, "top_k": -1, "ignore_eos": True,
        "logprobs": 0, "return_tokens_as_token_ids": True})
    said = [c["logprobs"] for c in sorted(reply["choices"], key=lambda c: c["index"])]
    return [[int(t.split(":")[1]) for t in s["tokens"]] for s in said], [s["token_logprobs"] for s in said]


def sample_sglang(url, prompts):
    replies = ask(f"{url}/generate", {"input_ids": prompts, "return_logprob": True, "sampling_params": {
        "temperature": 1, "top_p": 1, "top_k": -1, "max_new_tokens": TOKENS, "ignore_eos": True}})
    return [r["output_ids"] for r in replies], [[p for p, *_ in r["meta_info"]["output_token_logprobs"]] for r in replies]


SAMPLE = {"vllm": sample_vllm, "sglang": sample_sglang}
SERVING = {"vllm": "weight_info", "sglang": "model_info"}


class Batch:
    """What the engine sampled, with its log probabilities; `mine` are this rank's prompts' rows."""

    def __init__(self, tokens, said, has_vowel):
        self.tokens, self.said = tokens, said
        self.rewards = has_vowel[tokens[:, PROMPT_TOKENS:]].float()
        baseline = self.rewards.view(PROMPTS, -1).mean(1).repeat_interleave(GROUP)
        self.advantages = self.rewards - baseline[:, None]
        per_rank = len(tokens) // dist.get_world_size()
        self.mine = slice(dist.get_rank() * per_rank, (dist.get_rank() + 1) * per_rank)


class Policy:
    """The model that is trained, sharded over the ranks."""

    def __init__(self, config, learning_rate):
        torch.manual_seed(0)  # the same on all ranks
        self.model = Qwen3ForCausalLM(config)
        with torch.no_grad():
            for p in self.model.parameters():
                if p.dim() > 1:
                    p.normal_(0, 0.05)
        shard = dict(mesh=init_device_mesh("cpu", (dist.get_world_size(),)),
                     mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
        for layer in self.model.model.layers:
            fully_shard(layer, **shard)
        fully_shard(self.model, **shard)
        head = [self.model.lm_head.weight]
        body = [p for name, p in self.model.named_parameters() if not name.startswith("lm_head")]
        self.optimizer = torch.optim.Adam([{"params": head, "lr": learning_rate}, {"params": body, "lr": BODY_RATE}], betas=(0.9, 0.95))

    def look(self, batch):
        """Own log probabilities of this rank's part of the samples, and over all ranks the largest difference from the
        engine's and the largest logit."""
        tokens = batch.tokens[batch.mine]
        logits = self.model(input_ids=tokens, use_cache=False).logits[:, PROMPT_TOKENS - 1 : -1].float()
        own = logits.log_softmax(-1).gather(-1, tokens[:, PROMPT_TOKENS:, None]).squeeze(-1)
        worst = torch.stack([(own - batch.said[batch.mine]).abs().max(), logits.abs().max()]).detach()
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return own, worst.tolist()

    def step(self, batch, own):
        loss = -(batch.advantages[batch.mine] * own).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Run:
    def __init__(self, engine, url, mount, folder, learning_rate):
        self.engine, self.url, self.mount = engine, url, mount
        self.first = dist.get_rank() == 0
        config, words = Qwen3Config(**dict(CONFIG, hidden_size=256, intermediate_size=512, num_attention_heads=4,
                                           num_key_value_heads=2, head_dim=64)), tokenizer()
        config.architectures = ["Qwen3ForCausalLM"]
        if self.first:
            config.save_pretrained(folder)
            words.save_pretrained(folder)
        dist.barrier()
        self.words = words
        self.has_vowel = torch.tensor([bool(VOWELS & set(words.decode([i]))) for i in range(config.vocab_size)])
        generator = torch.Generator().manual_seed(1)
        self.prompts = torch.randint(4, config.vocab_size, (PROMPTS, PROMPT_TOKENS), generator=generator).repeat_interleave(GROUP, 0)
        self.policy = Policy(config, learning_rate)
        self.publisher = wsync.Publisher(MODEL, wsync.fsdp(self.policy.model), hf_config=folder, dtype="bfloat16", start_agent=False)

    def publish(self, version):
        """Seconds of the slowest rank."""
        dist.barrier()
        start = time.monotonic()
        self.publisher.offload(version)
        seconds = torch.tensor(time.monotonic() - start)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()

    def wait_loaded(self, version, seconds):
        if self.first:  # the others wait for the samples
            self.publisher.wait_loaded(version, who=1, timeout=seconds)

    def sample(self):
        """Rank 0 asks the engine, the others are told."""
        got = [None]
        if self.first:
            got = [SAMPLE[self.engine](self.url, self.prompts.tolist())]
        dist.broadcast_object_list(got, src=0)
        tokens, said = got[0]
        return Batch(torch.cat([self.prompts, torch.tensor(tokens)], 1), torch.tensor(said), self.has_vowel)

    def tell(self, version, batch, worst, **more):
        if self.first:
            print(json.dumps({"version": version, "reward": batch.rewards.mean().item(), "tokens": batch.rewards.numel(),
                              "difference": worst[0], "logit": worst[1],
                              "text": self.words.decode(batch.tokens[0, PROMPT_TOKENS:]), **more}), flush=True)

    def set_policy(self, word):
        if self.first:
            fd = os.open(f"{self.mount}/{MODEL}/policy", os.O_WRONLY | os.O_TRUNC)
            try:
                os.write(fd, f"{word}\n".encode())
            finally:
                os.close(fd)

    def hold_back(self, version):
        """The version is published and nobody switches: what the engine samples now is not what the trainer has."""
        if self.first:
            self.publisher.wait_published(version)
        batch = self.sample()
        with torch.no_grad():
            _, worst = self.policy.look(batch)
        serving = ask(f"{self.url}/{SERVING[self.engine]}")["weight_version"].split("@")[0] if self.first else None
        self.tell(version, batch, worst, held=True, serving=serving)

    def train(self, steps, hold):
        self.publish(1)
        self.wait_loaded(1, START_SECONDS)  # the engine starts on it
        batch = self.sample()
        own, worst = self.policy.look(batch)
        self.tell(1, batch, worst)
        for version in range(2, steps + 2):
            start = time.monotonic()
            self.policy.step(batch, own)
            if version == hold + 1:
                self.set_policy("manual")
            offload = self.publish(version)
            if version == hold + 1:
                self.hold_back(version)
                self.set_policy("follow")
            self.wait_loaded(version, LOAD_SECONDS)
            batch = self.sample()
            own, worst = self.policy.look(batch)
            self.tell(version, batch, worst, offload=offload, seconds=time.monotonic() - start)
        self.publisher.close()


def main(engine, url, mount, folder, steps, hold, learning_rate):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=START_SECONDS + ASK_SECONDS))
    try:
        Run(engine, url, mount, folder, float(learning_rate)).train(int(steps), int(hold))
    except Exception:
        traceback.print_exc()
        os._exit(1)  # the others would wait for this rank
    dist.destroy_process_group()


main(*sys.argv[1:])
