"""What the ranks of the trainers' tests share. A script is started by torchrun with the names of cases; of each it
publishes versions under the case's name, and rank 0 saves what they must be by the framework's own means below
$EXPECTED/CASE/VERSION."""
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
    """Of a model whose config.json is that of version 1's expected folder, unless told otherwise."""
    options.setdefault("hf_config", folder or os.path.join(EXPECTED, case, str(version)))
    return wsync.Publisher(case, source, start_agent=False, **options)


def save(case, version, model, dtype=None):
    """Rank 0's save_pretrained of a whole model; the others wait for it."""
    if rank() == 0:
        if dtype is not None:
            model = model.to(dtype)
        model.save_pretrained(os.path.join(EXPECTED, case, str(version)))
    dist.barrier()


def gathered(model, template, full):
    """A whole copy of a sharded model: template() with the tensors full(name, parameter) of each, on rank 0."""
    state = {n.replace("_fsdp_wrapped_module.", ""): full(n, p) for n, p in model.named_parameters()}
    if rank() != 0:
        return None
    whole = template()
    missing, extra = whole.load_state_dict(state, strict=False)
    assert not extra and all("lm_head" in m for m in missing), (missing, extra)
    return whole


def batch(vocabulary, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (2, 8), generator=generator)


def main(cases):
    """Runs those that argv names; each prints one line on rank 0. An error ends all."""
    try:
        for name in sys.argv[1:]:
            dist.barrier()
            cases[name](name)
            dist.barrier()
            if rank() == 0:
                print(f"done {name}", flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # the others would wait for this rank
    dist.destroy_process_group()
