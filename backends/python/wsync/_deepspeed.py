"""DeepSpeed: ZeRO-3's partitions, the fragments of ZeRO-1 and -2, and what is in neither."""
from __future__ import annotations

from ._conversions import Conversions
from ._fsdp import add_buffers
from ._held import Held, Source
from ._library import lib


def deepspeed(engine, *, master: bool = False, conversions=True) -> Source:
    """The parameters of a DeepSpeed engine, of any ZeRO stage, offloaded to the CPU or not, frozen ones too. Each rank
    gives the part that it updates, so the bytes are spread evenly.

    master: read the optimizer's float32 masters instead of the bf16 or fp16 parameters; they are rounded in
    the copy, to the same bits, where the file's dtype is narrower. Frozen parameters have none and are read as they are."""
    return DeepSpeed(engine, master, conversions)


class DeepSpeed(Source):
    kind = "deepspeed"

    def __init__(self, engine, master: bool, conversions) -> None:
        self.module = getattr(engine, "module", engine)
        self._master = master
        self._conversions = Conversions(self.module) if conversions else None

    def held(self) -> Held:
        held = Held()
        for name, p in self.module.named_parameters():
            if hasattr(p, "ds_id"):
                self._partition(name, p, held)
            elif hasattr(p, "_hp_mapping"):
                self._fragment(name, p, held)
            else:
                held.add(name, p)
        add_buffers(self.module, held)
        return held

    def _partition(self, name: str, p, held: Held) -> None:
        rank, size = getattr(p, "ds_zero_partition_rank", None), getattr(p, "ds_zero_partition_world_size", None)
        if rank is None:  # releases before 0.19
            import torch.distributed as dist

            rank, size = dist.get_rank(p.ds_process_group), dist.get_world_size(p.ds_process_group)
        part = p.ds_tensor
        if getattr(part, "ds_quant_scale", None) is not None:
            raise NotImplementedError(f"{name} is kept quantised by ZeRO (zero_quantized_nontrainable_weights): it cannot be published as it is")
        if getattr(getattr(part, "status", None), "name", "AVAILABLE") != "AVAILABLE":
            raise RuntimeError(f"{name} is swapped out to NVMe: let the engine read it back before the offload, or keep parameters on the CPU")
        count = part.ds_numel
        if self._master:
            from deepspeed.utils import safe_get_local_fp32_param

            found = safe_get_local_fp32_param(p)
            part = part if found is None else found
        held.add_flat(name, p.ds_shape, part.detach().reshape(-1), placements=((lib.WSYNC_SHARD, 0, 0, size, rank),), count=count)

    def _fragment(self, name: str, p, held: Held) -> None:
        mapping = p._hp_mapping
        if mapping is None:  # this rank's partition does not touch it
            return
        at = mapping.lp_fragment_address
        if self._master:
            source = mapping.hp_fragment.detach().reshape(-1)
        else:
            source = p.detach().view(-1).narrow(0, at.start, at.numel)
        held.add_flat(name, p.shape, source, start=at.start, count=at.numel)

    def options(self) -> dict:
        return self._conversions.options() if self._conversions else {}

    def expected(self, meta):
        return self._conversions.expected(meta) if self._conversions else None
