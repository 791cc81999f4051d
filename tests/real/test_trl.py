# timeout: 900, takes: 100
"""wsync.trl in TRL's own trainers on a CPU: what a mount shows after each step equals the trainer's weights bit for bit, and the engine serves it.
The engine is the reference engine with vLLM's routes; test_recipes.py has vLLM itself. Of AsyncGRPOTrainer's two kernels for GPUs the attention is
torch's, and its rollouts are made here; its gathers, syncs and steps are its own."""
import os
import queue
import sys
from types import SimpleNamespace

import numpy
import pytest

from ground import need
from package import package
from world import Agent, Engine, Mount, free_port, tensors_of, unique, wait_for

sys.path.insert(0, package())
need("trl")

import torch  # noqa: E402
from checkpoints import CONFIG, tokenizer  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM, TrainerCallback  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing  # noqa: E402
from trl.experimental.async_grpo.async_rollout_worker import RolloutSample  # noqa: E402

import wsync  # noqa: E402
import wsync.trl  # noqa: E402

torch.set_num_threads(1)
COMMON = dict(use_cpu=True, bf16=False, per_device_train_batch_size=2, learning_rate=1e-2, save_strategy="no", report_to="none", disable_tqdm=True,
              logging_steps=1, gradient_checkpointing=False)


@pytest.fixture
def place(monkeypatch):
    """An agent, a mount and a checkpoint that is version 1 of actor."""

    class Place:
        agent = Agent()
        start = unique("start")

    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**CONFIG)).save_pretrained(Place.start)
    tokenizer().save_pretrained(Place.start)
    monkeypatch.setenv("WSYNC_AGENT", f"unix:{Place.agent.sock}")
    Place.agent.publish("actor", 1, Place.start)
    Place.mount = Mount(f"unix:{Place.agent.sock}")
    Place.mount.wait_version("actor", 1)
    return Place


def same(path, tensors):
    """Compares a folder's file with tensors, {name: tensor}."""
    got = tensors_of(os.path.join(path, "model.safetensors"))
    assert set(got) == set(tensors), set(got) ^ set(tensors)
    for name, tensor in tensors.items():
        assert got[name][1] == list(tensor.shape) and got[name][2] == tensor.detach().contiguous().view(torch.uint8).numpy().tobytes(), name


def copied(model):
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


class Keep(TrainerCallback):
    """Keeps what each step leaves, before the callback after it publishes it."""

    def __init__(self, of=copied):
        self.of, self.kept = of, {}

    def on_step_end(self, args, state, control, model, **_):
        self.kept[state.global_step + 1] = self.of(model)


def sft(place, keep, steps=3, **more):
    rows = Dataset.from_list([{"text": text} for text in ("one two", "three four") * 8])
    args = SFTConfig(output_dir=unique("out"), max_steps=steps, max_length=16, loss_type="nll", **COMMON)
    return SFTTrainer(place.start, args=args, train_dataset=rows, processing_class=tokenizer(), callbacks=[keep], **more)


class Rollouts:
    """TRL's RolloutWorkerProtocol: completions of nobody."""

    def __init__(self):
        self.rollout_buffer, self.metrics_queue, self.versions = queue.Queue(), queue.Queue(), []

    def start(self):
        numbers = numpy.random.default_rng(0)
        for i in range(64):
            ids = numbers.integers(5, 100, 12)
            self.rollout_buffer.put(RolloutSample([], [], ids, numpy.array([0] * 4 + [1] * 8), numpy.full(12, -1.0, numpy.float32),
                                                  1.0 if i % 2 else -1.0, 1, i // 2, {}))

    def stop(self):
        pass

    def update_model_version(self, version):
        self.versions.append(version)

    def check_health(self, stale_after_s):
        pass


def attention(module, query, key, value, attention_mask, scaling=None, **_):
    """In the place of the kernel that wants a GPU; what one sample sees of another in a row does not matter here."""
    groups = query.shape[1] // key.shape[1]
    key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling).transpose(1, 2), None


def asynchronous(place, monkeypatch, transfer):
    monkeypatch.setattr(packing, "tree_attention", attention)
    monkeypatch.setattr(async_grpo_trainer.VLLMClient, "get_max_model_len", lambda _: 64)  # the reference engine has none
    monkeypatch.setattr(async_grpo_trainer, "get_peak_flops_per_device", lambda *_: 1e12)  # asks a GPU's name
    args = AsyncGRPOConfig(output_dir=unique("out"), max_steps=2, num_generations=2, max_staleness=100, dtype="float32",
                           vllm_server_base_url=transfer.engine.url, vllm_server_timeout=10, **COMMON)
    rows = Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in ("one", "two")])
    return AsyncGRPOTrainer(place.start, reward_funcs=lambda **_: [0.0], args=args, train_dataset=rows, processing_class=tokenizer(),
                            rollout_worker=Rollouts(), weight_transfer=transfer)


class Seen(wsync.trl.WeightTransfer):
    """Keeps what it is sent, and asks the engine after each send."""

    engine = None

    def send_weights(self, iterator):
        self.sent = []
        super().send_weights(self.sent.append((name, tensor.clone())) or (name, tensor) for name, tensor in iterator)
        self.served = [*getattr(self, "served", []), self.engine.serves(whole=True)]
        assert not self.engine.is_paused()


def test_callback(place):
    "SFTTrainer: versions 1 to 4 equal the weights before training and after each step; a mount's engine is switched at each"
    place.mount.write(f"engine add e1 vllm {(engine := Engine(place.mount.file('actor', 1), api='vllm')).url}", "actor/ctl")
    keep = Keep()
    trainer = sft(place, keep)
    trainer.add_callback(callback := wsync.trl.callback(trainer, mount=place.mount.path, timeout=30))

    class Served(TrainerCallback):
        versions = []

        def on_step_end(self, args, state, control, **_):
            self.versions.append(engine.serves())

    trainer.add_callback(served := Served())
    trainer.train()
    assert served.versions == ["2", "3", "4"] and callback._pub is None
    for version, tensors in list(keep.kept.items())[-2:]:
        same(place.mount.file("actor", version), tensors)
    assert any((keep.kept[3][n] != keep.kept[4][n]).any() for n in keep.kept[4])
    assert open(place.mount.file("actor", 4, "config.json")).read() == open(os.path.join(place.start, "config.json")).read()


def test_callback_with_an_adapter(place):
    "LoRA is merged around the copy, every second step and the last one are published, and the adapter is trained on unmerged"

    def merged(model):
        model.merge_adapter()
        whole = copied(model)
        model.unmerge_adapter()
        prefix, drop = "base_model.model.", (model.prefix, "original_module")
        return {n.removeprefix(prefix).replace(".base_layer", ""): t for n, t in whole.items() if not any(d in n for d in drop)}

    keep = Keep(merged)
    trainer = sft(place, keep, peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    trainer.add_callback(wsync.trl.callback(trainer, every=2))
    trainer.train()
    assert not any(getattr(m, "merged", False) for m in trainer.model.modules())
    for version in (3, 4):
        place.mount.wait_version("actor", version)
        same(place.mount.file("actor", version), keep.kept[version])
    assert not os.path.exists(place.mount.file("actor", 2))


def test_callback_switches_to_its_own_lineage(place):
    "also where another trainer has published that number anew meanwhile, in a lineage that is newer"
    place.mount.write(f"engine add e1 vllm {(engine := Engine(place.mount.file('actor', 1), api='vllm')).url}", "actor/ctl")
    place.agent.publish("actor", 2, place.start, "--new-run")
    place.mount.wait_version("actor", 2)
    place.mount.write("pull 2", "actor/ctl")
    place.agent.publish("actor", 2, place.start, "--new-run")
    lineages = wait_for(lambda: [name for name in os.listdir(place.mount.file("actor")) if name.startswith("2@")], "the other lineage")
    callback = wsync.trl.Callback(None, None, "actor", 1, False, place.mount.path, False, 30, {})
    callback._mount, callback._pub = wsync.mount(path=place.mount.path), SimpleNamespace(run=lineages[0].removeprefix("2@"), close=lambda: None)
    callback._switch(2)
    callback.close()
    assert engine.serves(whole=True) == lineages[0]


def test_callback_whose_engine_refuses(place):
    "training ends with the mount's reason and the engine serves what it did; the same callback then trains on"
    engine = Engine(place.mount.file("actor", 1), api="vllm")
    place.mount.write(f"engine add e1 vllm {engine.url}", "actor/ctl")
    trainer = sft(place, Keep(), steps=1)
    trainer.add_callback(callback := wsync.trl.callback(trainer, mount=place.mount.path, timeout=30))
    engine.end()
    with pytest.raises(wsync.Error, match="the engines did not switch to 2: (?s:.*)e1"):
        trainer.train()
    assert callback._pub is None and callback._mount is None
    with pytest.raises(ValueError, match="every=0"):
        wsync.trl.callback(trainer, every=0)


def test_transfer(place, monkeypatch):
    "AsyncGRPOTrainer: the sync before training and one after each step; the engine serves each and the file equals the trainer's weights"
    engine = Engine(place.mount.file("actor", 1), api="vllm")
    transfer = Seen(engine.url, mount=place.mount.path, timeout=30)
    transfer.engine = engine
    trainer = asynchronous(place, monkeypatch, transfer)
    before = copied(trainer.model)
    trainer.train()
    run = transfer._sender.run
    assert len(transfer.served) == 3 and all(name.endswith(f"@{run}") for name in transfer.served), transfer.served
    assert trainer.rollout_worker.versions[-1] == 3 and transfer._sender._pub is None
    after = copied(trainer.model)
    same(place.mount.file("actor", transfer.served[-1]), after)
    assert dict(transfer.sent).keys() == after.keys() and any((before[n] != after[n]).any() for n in after)


def test_transfer_to_mounts_that_follow(place, monkeypatch):
    "without url, each send returns when the engine of the mount serves it"
    engine = Engine(place.mount.file("actor", 1), api="vllm")
    place.mount.write(f"engine add e1 vllm {engine.url}", "actor/ctl")
    place.mount.write("follow-published", "actor/policy")
    transfer = Seen(timeout=30)
    transfer.engine = engine
    trainer = asynchronous(place, monkeypatch, transfer)
    trainer.train()
    assert len(set(transfer.served)) == 3, transfer.served
    same(place.mount.file("actor", transfer._sender.version), copied(trainer.model))


def test_transfer_says_what_is_missing(place, monkeypatch):
    "no vLLM, one that refuses the load, a second trainer of the model, no mount, no agent: an error that says it; all tensors are taken, as other ranks wait in them"
    transfer = wsync.trl.WeightTransfer("http://127.0.0.1:9", mount=place.mount.path, timeout=0.5)
    with pytest.raises(wsync.Error, match="127.0.0.1:9"):
        transfer.init_weight_transfer()
    transfer.destroy()
    port, taken = free_port(), []
    transfer = wsync.trl.WeightTransfer(f"http://127.0.0.1:{port}", mount=place.mount.path, timeout=30)
    engine = Engine(place.mount.file("actor", 1), "--refuse", f"2@{transfer._sender.run}", api="vllm", port=port)

    def pairs():
        for name in ("a.weight", "b.weight"):
            taken.append(name)
            yield name, torch.ones(4)

    transfer.init_weight_transfer()
    with pytest.raises(wsync.Error, match="Refused.*left paused"):
        transfer.send_weights(pairs())
    assert taken == ["a.weight", "b.weight"] and engine.is_paused()
    with pytest.raises(wsync.Error, match="publishes actor already"):
        wsync.trl.WeightTransfer(engine.url, mount=place.mount.path).send_weights(pairs())
    transfer.send_weights(pairs())  # the next load repairs what the refused one left
    assert engine.serves() == "3" and not engine.is_paused()
    taken.clear()
    monkeypatch.setattr(transfer._receiver, "opened", lambda told: wsync.Mount(None, None, "memory"))
    with pytest.raises(wsync.Error, match="nothing can be mounted here.*follow-published"):
        transfer.init_weight_transfer()
    monkeypatch.undo()
    place.agent.kill()
    taken.clear()
    with pytest.raises((wsync.Error, wsync.Timeout)):
        transfer.send_weights(pairs())
    assert taken == ["a.weight", "b.weight"]
    transfer.destroy()
    transfer.destroy()
