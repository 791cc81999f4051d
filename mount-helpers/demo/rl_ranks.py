"""The trainer of demo-rl.py: FSDP2 or Megatron-core over gloo ranks, REINFORCE on what a real engine samples. Started by torchrun.

    rl_ranks.py TRAINER ENGINE SERVED SIZE URL MOUNT FOLDER STEPS HOLD LEARNING_RATE

Of wsync it knows Publisher: offload() after each step, wait_loaded() before the next samples. TRAINER is fsdp or megatron: rl_fsdp.py
or rl_megatron.py, whose Policy is what is trained. ENGINE is vllm or sglang; SERVED is what it serves, the trained model or its FP8
view; SIZE is the model's (SIZES); FOLDER is where its config and tokenizer are put; in step HOLD the version is held back: MOUNT's
policy is `manual` for its time. Rank 0 prints a line of JSON for every version that was sampled from.

The reward: 1 for each sampled token with a vowel in its text, 0 for the others; its baseline is the mean of the group
of samples of one prompt. Masters are float32; forward and backward use bf16 copies of them, rounded as the published file is, so
that log probabilities differ from the engine's by the noise of bf16 arithmetic and by nothing else.

An engine on the FP8 view samples from another policy than the one that is trained: the loss weighs each token by what the
two say of it (truncated importance sampling), and what the engine's log probabilities are compared with is a forward of the
view's own weights, as its file in MOUNT has them. There the model and the groups are smaller: without AMX-FP8, vLLM's CPU
build multiplies FP8 by reference code, at 10 million products a second on two cores that do other work, too."""
import datetime
import importlib
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
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

import wsync

MODEL = "actor"
MOST_WEIGHT = 2.0  # of a token that the trained policy finds likelier than the one that sampled it
MOST_E4M3 = 448.0
PROMPTS, PROMPT_TOKENS, TOKENS = 8, 8, 16
USUAL = dict(hidden_size=256, intermediate_size=512, num_attention_heads=4, num_key_value_heads=2, head_dim=64)
# of the model, beside CONFIG, and of a group of samples; the learning rate of all but lm_head: as in runs of large models, few bf16 elements of
# it change in a step. A patch wants that of the whole model: lm_head, of which all elements change, is 2 % of that one.
SIZES = {"bf16": (USUAL, 8, 3e-6), "patch": (USUAL | dict(intermediate_size=2048, num_hidden_layers=6), 8, 1e-6),
         "fp8": (dict(intermediate_size=64, num_hidden_layers=1), 4, 3e-6)}
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
        baseline = self.rewards.view(PROMPTS, -1).mean(1).repeat_interleave(len(tokens) // PROMPTS)
        self.advantages = self.rewards - baseline[:, None]
        per_rank = len(tokens) // dist.get_world_size()
        self.mine = slice(dist.get_rank() * per_rank, (dist.get_rank() + 1) * per_rank)


def log_probabilities(logits, tokens):
    """Of the sampled tokens, and the logits that they come from."""
    logits = logits[:, PROMPT_TOKENS - 1 : -1].float()
    return logits.log_softmax(-1).gather(-1, tokens[:, PROMPT_TOKENS:, None]).squeeze(-1), logits


class Fp8Linear(torch.nn.Module):
    """A layer of the FP8 view, as the engine computes it: each token's activations become codes of a scale of their own, and products
    of codes are added up in float32."""

    def __init__(self):
        super().__init__()
        self.weight = self.weight_scale = None

    def forward(self, x):
        scale = (x.float().abs().amax(-1, keepdim=True) / MOST_E4M3).clamp(min=1 / (MOST_E4M3 * 512))
        codes = (x.float() * scale.reciprocal()).clamp(-MOST_E4M3, MOST_E4M3).to(torch.float8_e4m3fn)
        return (torch.nn.functional.linear(codes.float(), self.weight) * scale * self.weight_scale).to(x.dtype)


class View:
    """The FP8 model that the engine samples from, out of the file that the engine reads; the same on all ranks."""

    def __init__(self, config, folder):
        self.model, self.folder = Qwen3ForCausalLM(config).to(torch.bfloat16).eval(), folder
        linear = [name for name, module in self.model.named_modules() if isinstance(module, torch.nn.Linear) and name != "lm_head"]
        self.layers = {name: Fp8Linear() for name in linear}
        for name, layer in self.layers.items():
            self.model.set_submodule(name, layer)

    @torch.no_grad()
    def look(self, version, tokens):
        weights = load_file(os.path.join(self.folder, str(version), "model.safetensors"))
        for name, layer in self.layers.items():
            layer.weight, layer.weight_scale = (weights.pop(f"{name}.{w}").float() for w in ("weight", "weight_scale"))
            layer.weight_scale = layer.weight_scale.squeeze(-1)
        self.model.load_state_dict(weights)
        return log_probabilities(self.model(input_ids=tokens, use_cache=False).logits, tokens)


class Run:
    def __init__(self, trainer, engine, served, size, url, mount, folder, learning_rate):
        self.engine, self.served, self.url, self.mount = engine, os.path.join(mount, served), url, mount
        self.first = dist.get_rank() == 0
        more, group, body_rate = SIZES[size]
        config, words = Qwen3Config(**(CONFIG | more)), tokenizer()
        config.architectures = ["Qwen3ForCausalLM"]
        if self.first:
            config.save_pretrained(folder)
            words.save_pretrained(folder)
        dist.barrier()
        self.words = words
        self.has_vowel = torch.tensor([bool(VOWELS & set(words.decode([i]))) for i in range(config.vocab_size)])
        generator = torch.Generator().manual_seed(1)
        self.prompts = torch.randint(4, config.vocab_size, (PROMPTS, PROMPT_TOKENS), generator=generator).repeat_interleave(group, 0)
        self.policy = importlib.import_module(f"rl_{trainer}").Policy(config, learning_rate, body_rate)
        self.view = View(config, self.served) if served != MODEL else None
        self.publisher = wsync.Publisher(MODEL, self.policy.source(), hf_config=folder, dtype="bfloat16", start_agent=False)

    def publish(self, version):
        """Seconds of the slowest rank."""
        dist.barrier()
        start = time.monotonic()
        self.publisher.offload(version)
        seconds = torch.tensor(time.monotonic() - start)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        return seconds.item()

    def wait_loaded(self, version, seconds):
        if self.view:  # a mount reports what it loads under the view's name
            self.wait_for(f"{self.served}/version to name {version}", lambda: self.current() == str(version), seconds)
        elif self.first:  # the others wait for the samples
            self.publisher.wait_loaded(version, who=1, timeout=seconds)

    def current(self):
        """The mount's; None: it has not heard of the view yet, which is published before mounts hear of it."""
        try:
            with open(os.path.join(self.served, "version")) as f:
                return f.read().strip()
        except FileNotFoundError:
            return None

    @staticmethod
    def wait_for(what, condition, seconds):
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise RuntimeError(f"waited {seconds} s for {what}")
            time.sleep(0.01)

    def look(self, version, batch):
        """The trained policy's log probabilities of this rank's part of the samples, and what to weigh its tokens by; and over all
        ranks the largest difference of the engine's from those of the weights that it has, the largest logit, and the mean of what
        the trained policy's differ by."""
        tokens, said = batch.tokens[batch.mine], batch.said[batch.mine]
        own, logits = log_probabilities(self.policy.logits(tokens), tokens)
        like, of = self.view.look(version, tokens) if self.view else (own, logits)
        worst = torch.stack([(like - said).abs().max(), of.abs().max()]).detach()
        apart = (own - said).abs().mean().detach()
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        dist.all_reduce(apart)
        weights = (own - said).exp().clamp(max=MOST_WEIGHT).detach() if self.view else torch.ones_like(said)
        return own, weights, [*worst.tolist(), apart.item() / dist.get_world_size()]

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
                              "difference": worst[0], "logit": worst[1], "apart": worst[2],
                              "text": self.words.decode(batch.tokens[0, PROMPT_TOKENS:]), **more}), flush=True)

    def set_policy(self, word):
        if self.first:
            fd = os.open(f"{self.served}/policy", os.O_WRONLY | os.O_TRUNC)
            try:
                os.write(fd, f"{word}\n".encode())
            finally:
                os.close(fd)

    def hold_back(self, version):
        """The version is published and nobody switches: what the engine samples now is not what the trainer has."""
        if self.first:
            self.publisher.wait_published(version)
        self.wait_for(f"{self.served}/{version}", lambda: os.path.isdir(os.path.join(self.served, str(version))), LOAD_SECONDS)
        batch = self.sample()
        with torch.no_grad():
            _, _, worst = self.look(version, batch)
        serving = ask(f"{self.url}/{SERVING[self.engine]}")["weight_version"].split("@")[0] if self.first else None
        self.tell(version, batch, worst, held=True, serving=serving)

    def train(self, steps, hold):
        self.publish(1)
        self.wait_loaded(1, START_SECONDS)  # the engine starts on it
        batch = self.sample()
        own, weights, worst = self.look(1, batch)
        self.tell(1, batch, worst)
        for version in range(2, steps + 2):
            start = time.monotonic()
            self.policy.step(-(weights * batch.advantages[batch.mine] * own).mean())
            if version == hold + 1:
                self.set_policy("manual")
            offload = self.publish(version)
            if version == hold + 1:
                self.hold_back(version)
                self.set_policy("follow")
            self.wait_loaded(version, LOAD_SECONDS)
            batch = self.sample()
            own, weights, worst = self.look(version, batch)
            self.tell(version, batch, worst, offload=offload, seconds=time.monotonic() - start)
        self.publisher.close()


def main(trainer, engine, served, size, url, mount, folder, steps, hold, learning_rate):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=START_SECONDS + ASK_SECONDS))
    try:
        Run(trainer, engine, served, size, url, mount, folder, float(learning_rate)).train(int(steps), int(hold))
    except Exception:
        traceback.print_exc()
        os._exit(1)  # the others would wait for this rank
    dist.destroy_process_group()


main(*sys.argv[1:])
