"""What tests of patches start a vLLM with: --worker-cls patch_probe.Worker, --worker-extension-cls patch_probe.Probe.

vLLM's CPU build packs the weights of linear layers and of experts for its kernels, so that there is next to nothing to patch. As on GPUs, they
stay as they are in this worker: linear layers use torch's own kernel, small ones too, which a CPU with AMX would pack. Experts are packed,
unless their family is one whose experts torch computes."""
import hashlib
import os
import time

import torch
import vllm._custom_ops as ops
from vllm.model_executor.layers import utils
from vllm.v1.worker.cpu_worker import CPUWorker

from wsync.patch import _plan
from wsync.vllm import Extension


class Worker(CPUWorker):
    def __init__(self, *args, **more):
        ops._supports_onednn = False
        utils.check_cpu_sgl_kernel = lambda n, k, dtype: False
        super().__init__(*args, **more)


class Probe(Extension):
    def probe_digests(self):
        """The bits of every parameter and buffer."""
        model = self.model_runner.get_model()
        bits = lambda t: hashlib.blake2b(t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes(), digest_size=8).hexdigest()
        return {name: bits(t) for name, t in (*model.named_parameters(), *model.named_buffers()) if t.numel()}

    def probe_flip(self, name):
        """One bit of a parameter becomes another."""
        dict(self.model_runner.get_model().named_parameters())[name].data.view(torch.int16).view(-1)[7] ^= 1

    def probe_stop(self, rank, file):
        """The next put of this rank writes one memory, makes the file, and stands still before the next one."""
        if self.rank != rank:
            return None
        make = _plan._host_patches

        def apart(regions):
            storage = lambda one: one[0].tensor.untyped_storage().data_ptr()
            patches = [made for at in dict.fromkeys(map(storage, regions)) for made in make([one for one in regions if storage(one) == at])]
            assert len(patches) > 1, "there are no two memories to stop between"
            patches[1].put = lambda: (open(file, "w").close(), time.sleep(3600))
            return patches

        _plan._host_patches = apart
        return os.getpid()
