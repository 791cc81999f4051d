"""Helpers of the trainers' ranks. torchrun starts a script with the names of cases; for each the script publishes versions under the case's
name, and rank 0 saves the expected ones by the framework's own means below $EXPECTED/CASE/VERSION."""
import os
import sys
import traceback

import torch
import torch.distributed as dist
from transformers.utils.logging import disable_progress_bar

import wsync

EXPECTED = os.environ["EXPECTED"]
torch.set_num_threads(1)
disable_progress_bar()


def rank():
    return dist.get_rank()


def publisher(case, source, version=1, folder=None, **options):
    """A publisher of a model whose config.json is that of version 1's expected folder by default."""
    options.setdefault("hf_config", folder or os.path.join(EXPECTED, case, str(version)))
    return wsync.Publisher(case, source, start_agent=False, **options)


def save(case, version, model, dtype=None):
    """Rank 0's save_pretrained of an unsharded model; the others wait."""
    if rank() == 0:
        if dtype is not None:
            model = model.to(dtype)
        model.save_pretrained(os.path.join(EXPECTED, case, str(version)))
    dist.barrier()


def gathered(model, template, full):
    """An unsharded copy of a sharded model on rank 0: template() filled with full(name, parameter)."""
    state = {n.replace("_fsdp_wrapped_module.", ""): full(n, p) for n, p in model.named_parameters()}
    if rank() != 0:
        return None
    whole = template()
    missing, extra = whole.load_state_dict(state, strict=False)
    assert not extra and all("lm_head" in m for m in missing), (missing, extra)
    return whole


def with_adapter(model):
    """A model with a LoRA adapter of PEFT's, which a step changes."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    return get_peft_model(model, LoraConfig(r=3, target_modules=["q_proj", "v_proj", "down_proj", "embed_tokens"], task_type="CAUSAL_LM"))


def save_adapter(case, version, model, whole):
    """Rank 0 saves an adapter's gathered tensors, {name: tensor}, under the names that PEFT itself gives them."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    if rank() == 0:
        folder = os.path.join(EXPECTED, case, str(version))
        os.makedirs(folder)
        named = get_peft_model_state_dict(model, {n: t for n, t in whole.items() if ".lora_" in n}, save_embedding_layers=False)
        named = {n.replace("_fsdp_wrapped_module.", ""): t.contiguous() for n, t in named.items()}
        save_file(named, os.path.join(folder, "adapter_model.safetensors"))
    dist.barrier()


def batch(vocabulary, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (2, 8), generator=generator)


def main(cases):
    """Runs the cases in argv; rank 0 prints a line for each. An error ends all."""
    try:
        for name in sys.argv[1:]:
            dist.barrier()
            cases[name](name)
            dist.barrier()
            if rank() == 0:
                print(f"done {name}", flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the other ranks would wait for this one
    dist.destroy_process_group()
