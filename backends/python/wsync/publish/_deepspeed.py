"""DeepSpeed: ZeRO-3's partitions, the fragments of ZeRO-1 and -2, and what is in neither.

DeepSpeed's accessors (safe_get_local_fp32_param and its like) may return copies that nobody keeps, and swap. So they are not
called: the optimizer's own partitions are read, where they are, and what is not in memory now is refused by name."""
from __future__ import annotations

from ..lib._library import lib
from ._conversions import Conversions
from ._fsdp import add_buffers, refuse_adapters, unwrapped
from ._held import Held, Source


def deepspeed(engine, *, master: bool = False, conversions=True) -> Source:
    """The parameters of a DeepSpeed engine, of any ZeRO stage, offloaded to the CPU or not, frozen ones too. Each rank
    gives the part that it updates, so the bytes are spread evenly.

    master: read the optimizer's float32 masters instead of the bf16 or fp16 parameters; they are rounded in
    the copy, to the same bits, where the file's dtype is narrower. Frozen parameters have none and are read as they are."""
    return DeepSpeed(engine, master, conversions)


class DeepSpeed(Source):
    kind = "deepspeed"

    def __init__(self, engine, master: bool, conversions) -> None:
        self.module = unwrapped(getattr(engine, "module", engine))
        self._engine = engine
        self._master = master
        self._conversions = Conversions(self.module) if conversions else None

    def held(self) -> Held:
        held = Held()
        self._refuse_offloaded()
        for name, p in self.module.named_parameters():
            if hasattr(p, "ds_id"):
                self._partition(name, p, held)
            elif hasattr(p, "_hp_mapping"):
                self._fragment(name, p, held)
            else:
                held.add(name, p)
        add_buffers(self.module, held)
        return held

    def _refuse_offloaded(self) -> None:
        """engine.offload_states() takes parameters apart (ZeRO-1 and -2 forget which rank has what), and may still be copying."""
        optimizers = {id(o): o for o in (getattr(self._engine, "optimizer", None), *(getattr(p, "_z3_optimizer", None) for p in self.module.parameters()))}
        read = {"lp_params", "hp_params"} if self._master else {"lp_params"}
        for optimizer in optimizers.values():
            away = read & {state.name for state in getattr(optimizer, "offloaded_states", ())}
            if away:
                raise RuntimeError(f"engine.offload_states() has put {' and '.join(sorted(away))} elsewhere: call engine.reload_states() before the offload")

    def _partition(self, name: str, p, held: Held) -> None:
        rank, size = getattr(p, "ds_zero_partition_rank", None), getattr(p, "ds_zero_partition_world_size", None)
        if rank is None:  # releases before 0.19
            import torch.distributed as dist

            rank, size = dist.get_rank(p.ds_process_group), dist.get_world_size(p.ds_process_group)
        part = p.ds_tensor
        if getattr(part, "ds_quant_scale", None) is not None:
            raise NotImplementedError(f"{name} is kept quantised by ZeRO (zero_quantized_nontrainable_weights): it cannot be published as it is")
        count = part.ds_numel
        master = _master_of(name, p, count) if self._master else None
        if master is None and getattr(getattr(part, "status", None), "name", "AVAILABLE") != "AVAILABLE":
            raise RuntimeError(f"{name} is swapped out to NVMe: let the engine read it back before the offload, or keep parameters on the CPU")
        source = part.detach().reshape(-1) if master is None else master
        held.add_flat(name, p.ds_shape, source, placements=((lib.WSYNC_SHARD, 0, 0, size, rank),), count=count)

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
        refuse_adapters(self.module)
        return self._conversions.options() if self._conversions else {}

    def expected(self, meta):
        return self._conversions.expected(meta) if self._conversions else None


def _master_of(name: str, p, count: int):
    """The run of ZeRO-3's flat float32 partition that is this parameter's; None: it is frozen and has none."""
    if not p.requires_grad:
        return None
    try:
        zero = p._z3_optimizer
        group, start, length = zero.grad_position[zero.get_param_id(p)]
        swappable = zero._swappable_optimizer_subgroup(group)
        flat = zero.fp32_partitioned_groups_flat[group].detach()
    except (AttributeError, KeyError, IndexError) as e:
        raise NotImplementedError(f"{name}: this release of DeepSpeed keeps its float32 master where wsync does not know it ({type(e).__name__}: {e}); "
                                  "publish with master=False") from e
    if swappable:
        raise NotImplementedError(f"the float32 master of {name} is swapped to NVMe (offload_optimizer: nvme): publish with master=False")
    if length != count or start + length > flat.numel():
        raise NotImplementedError(f"the float32 master of {name} is {length} elements from {start} on of {flat.numel()}, and its partition has {count}; publish with master=False")
    return flat.narrow(0, start, length)
