"""TRL's own trainer with a callback that publishes: trl_ranks.py CASE... README.md's recipe, and a model saved beside each version."""
import copy
import os
import tempfile

import torch
import torch.distributed as dist
from datasets import Dataset
from peft import LoraConfig
from transformers import Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import wsync
import wsync.trl
from checkpoints import CONFIG, tokenizer
from common import EXPECTED, main, publisher, rank, save

dist.init_process_group("gloo")
CLOSE = 0.3  # of log probabilities: bfloat16 rounds; weights that are one step old are 1.2 apart


class Publish(TrainerCallback):
    """The recipe's callback. make: returns the publisher."""

    def __init__(self, make):
        self.make = make

    def on_train_begin(self, args, state, control, **_):
        self.pub = self.make()

    def on_step_end(self, args, state, control, **_):
        self.pub.offload(version=state.global_step + 1)


class PublishMerged(Publish):
    """The recipe's callback for a PEFT model."""

    def on_step_end(self, args, state, control, model, **_):
        model.merge_adapter()
        super().on_step_end(args, state, control)
        model.unmerge_adapter()


def merged(model):
    """A merged PEFT model's tensors under the base model's names."""
    named = ((n.removeprefix("base_model.model.").replace(".base_layer", "").replace("modules_to_save.default.", ""), p)
             for n, p in model.named_parameters() if model.prefix not in n and "original_module" not in n)
    return dict(named)


def keep(case, version, model, dtype=None):
    """Saves the expected version by save_pretrained."""
    whole = copy.deepcopy(model)
    save(case, version, whole.merge_and_unload() if hasattr(whole, "merge_and_unload") else whole, dtype)


class Keep(TrainerCallback):
    """Saves each expected version, and waits until it is announced before the next step."""

    def __init__(self, keep, publish):
        self.keep, self.publish = keep, publish

    def on_step_end(self, args, state, control, model, **_):
        self.keep(state.global_step + 1, model)
        self.publish.pub.wait_published(state.global_step + 1)


def reward(completions, **_):
    return [float(len(set(c))) for c in completions]


def trainer_of(model, folder, lora=None, steps=2, **more):
    args = GRPOConfig(**dict(output_dir=folder, use_cpu=True, bf16=False, per_device_train_batch_size=2, num_generations=2, max_steps=steps,
                             max_completion_length=8, learning_rate=1e-2, save_strategy="no", report_to="none", disable_tqdm=True,
                             logging_steps=1, gradient_checkpointing=False) | more)
    rows = Dataset.from_list([{"prompt": text} for text in ("one", "two", "three", "four") * 4])
    return GRPOTrainer(model, reward_funcs=reward, args=args, train_dataset=rows, processing_class=tokenizer(), peft_config=lora)


def grpo(case, tied=False, lora=None, dtype=None):
    torch.manual_seed(0)
    config = Qwen3Config(**(CONFIG | {"tie_word_embeddings": tied}))
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        trainer = trainer_of(Qwen3ForCausalLM(config), folder, lora)
        source = (lambda: wsync.tensors(lambda: merged(trainer.model))) if lora else (lambda: wsync.fsdp(trainer.model))
        publish = (PublishMerged if lora else Publish)(lambda: publisher(case, source(), folder=folder, dtype=dtype))
        train(trainer, publish, lambda version, model: keep(case, version, model, dtype))


def train(trainer, publish, keep):
    trainer.add_callback(publish)
    trainer.add_callback(Keep(keep, publish))
    trainer.train()
    assert trainer.state.global_step == 2, trainer.state
    publish.pub.close()


def deepspeed_on_cpu():
    """accelerate and transformers start DeepSpeed on GPUs only: they are told that there are some, which are called cpu."""
    os.environ.update(DS_ACCELERATOR="cpu", ACCELERATE_TORCH_DEVICE="cpu", ACCELERATE_USE_DEEPSPEED="true")
    import accelerate.state
    import deepspeed
    import transformers.training_args

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else compiled at the first start, which takes 45 s
    deepspeed.init_distributed("gloo")
    accelerate.state.PartialState._prepare_backend = lambda *_, **__: ("gloo", accelerate.state.DistributedType.MULTI_GPU)
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True


def case_grpo_zero3(case):
    """accelerate's DeepSpeed; expected is what save_model gathers. A process has one state of accelerate: no other case beside it."""
    deepspeed_on_cpu()
    zero = dict(stage=3, stage3_gather_16bit_weights_on_model_save=True, stage3_param_persistence_threshold=0)
    config = dict(dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto"), bf16=dict(enabled=True),
                  zero_optimization=zero, zero_allow_untested_optimizer=True, zero_force_ds_cpu_optimizer=False)
    start = os.path.join(EXPECTED, "start-of-" + case)
    torch.manual_seed(0)
    if rank() == 0:
        Qwen3ForCausalLM(Qwen3Config(**CONFIG)).to(torch.bfloat16).save_pretrained(start)
    dist.barrier()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(start, folder, use_cpu=False, bf16=True, deepspeed=config)
        publish = Publish(lambda: publisher(case, wsync.deepspeed(trainer.deepspeed), folder=start))
        train(trainer, publish, lambda version, _: trainer.save_model(os.path.join(EXPECTED, case, str(version))))


def case_grpo(case):
    grpo(case)


def case_grpo_tied(case):
    grpo(case, tied=True, dtype=torch.bfloat16)


def case_grpo_lora(case):
    grpo(case, lora=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))


def case_callback(case):
    """wsync.trl.callback: each version after its step, on all ranks."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        config = Qwen3Config(**CONFIG)
        config.save_pretrained(folder)
        trainer = trainer_of(Qwen3ForCausalLM(config), folder)
        trainer.add_callback(Expect(case))
        trainer.add_callback(wsync.trl.callback(trainer, case))
        trainer.train()


class Expect(TrainerCallback):
    """Saves what each step leaves, before the callback after it publishes it."""

    def __init__(self, case):
        self.case = case

    def on_step_end(self, args, state, control, model, **_):
        keep(self.case, state.global_step + 1, model)


def case_vllm(case):
    """vllm_mode="server" with the callback, which has a mount that follows switch the server. Version 1 is the initial checkpoint."""
    wsync.trl.without_sync()
    model = Qwen3ForCausalLM.from_pretrained(os.environ["START"], dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(model, folder, steps=3, use_vllm=True, vllm_mode="server", vllm_server_base_url=os.environ["VLLM_URL"])
        trainer.add_callback(Expect(case))
        trainer.add_callback(wsync.trl.callback(trainer, case, loaded=True))
        trainer.train()
    apart = [step["sampling/sampling_logp_difference/max"] for step in trainer.state.log_history[:3]]
    print(f"# log probabilities that vLLM sampled with and the trainer's: {', '.join(f'{x:.3f}' for x in apart)} apart at most", flush=True)
    assert max(apart) < CLOSE, apart


main({"grpo": case_grpo, "grpo-tied": case_grpo_tied, "grpo-lora": case_grpo_lora, "grpo-zero3": case_grpo_zero3, "callback": case_callback, "vllm": case_vllm})
