"""DeepSpeed: ZeRO-3's partitions, the fragments of ZeRO-1 and -2, and unpartitioned parameters.

DeepSpeed's accessors (such as safe_get_local_fp32_param) may return temporary copies, and may swap. They are therefore not called:
the optimizer's own partitions are read in place, and a tensor that is not in memory is refused by name."""
from __future__ import annotations

from ..lib._library import lib
from ._autotp import cuts_of
from ._conversions import Conversions
from ._expert_parallel import Experts
from ._fsdp import add_buffers, refuse_adapters, unwrapped
from ._held import Held, Source


_QUANTISED = "QuantizedParameter"


def deepspeed(engine, *, master: bool = False, conversions=True) -> Source:
    """The parameters of a DeepSpeed engine of any ZeRO stage, with or without CPU offload, including frozen ones. Each rank
    supplies the part that it updates, so the bytes are spread evenly.

    master: read the optimizer's float32 master weights instead of the bf16 or fp16 parameters; the copy rounds them to the file's
    dtype, to the same bits. Frozen parameters have no masters and are read as they are."""
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
        cuts, experts = cuts_of(self.module), Experts(self.module)
        for name, p in self.module.named_parameters():
            if not self.takes(name):
                continue
            experts.check(name, p)
            name = experts.name(name)
            if type(p).__name__ == _QUANTISED:
                raise NotImplementedError(f"{name} is a {_QUANTISED}, kept quantised by deepspeed.linear: it cannot be published as it is")
            if cuts:
                self._cut(name, p, cuts.get(id(p)), held)
            elif hasattr(p, "ds_id"):
                self._partition(name, p, held)
            elif hasattr(p, "_hp_mapping"):
                self._fragment(name, p, held)
            else:
                held.add(name, p)
        add_buffers(self.module, held, takes=self.takes, name_of=experts.name)
        return held

    def _refuse_offloaded(self) -> None:
        """After engine.offload_states() ZeRO-1 and -2 no longer know which rank has which part, and a copy may still be running."""
        optimizers = {id(o): o for o in (getattr(self._engine, "optimizer", None), *(getattr(p, "_z3_optimizer", None) for p in self.module.parameters()))}
        read = {"lp_params", "hp_params"} if self._master else {"lp_params"}
        for optimizer in optimizers.values():
            offloaded = read & {state.name for state in getattr(optimizer, "offloaded_states", ())}
            if offloaded:
                raise RuntimeError(f"engine.offload_states() has put {' and '.join(sorted(offloaded))} elsewhere: call engine.reload_states() before the offload")

    def _cut(self, name: str, p, cut, held: Held) -> None:
        """Of a model that AutoTP has cut every rank supplies what it holds, since fragments of ZeRO-1 and -2 are of a piece there."""
        if self._master:
            raise NotImplementedError("AutoTP has cut this model, and of its float32 masters each rank has fragments of pieces: publish with master=False")
        if cut is None or cut.dim is None:
            held.add(name, p)
        elif (placement := cut.placement(cut.rank)) is not None:
            held.add_local(name, cut.shape, (placement,), p.detach())
        elif p.numel():  # rows
            held.add_flat(name, cut.shape, p.detach().view(-1), start=cut.start * (p.numel() // p.shape[0]), count=p.numel())

    def _partition(self, name: str, p, held: Held) -> None:
        rank, size = getattr(p, "ds_zero_partition_rank", None), getattr(p, "ds_zero_partition_world_size", None)
        mics = getattr(p, "comm", None)
        if hasattr(mics, "param_shard_rank"):  # MiCS, of releases before 0.19: partitions of a group that is smaller than ds_process_group
            rank, size = mics.param_shard_rank, mics.param_shard_size
        elif rank is None:  # releases before 0.19
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
        if mapping is None:  # no part of it is in this rank's partition
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

    def saved(self, meta):
        return self._conversions.saved(meta) if self._conversions else None


def _master_of(name: str, p, count: int):
    """The parameter's range of ZeRO-3's flat float32 partition; None if it is frozen."""
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
