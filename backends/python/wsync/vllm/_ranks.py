"""Agreement between the workers of one engine: all of them load a version, or none does.

If vLLM runs workers as its own processes ("mp"), an exception of one rank leaves the replies of later ranks unread, and each later
call then gets the reply of the previous call (vLLM 0.32). There only the last rank raises, with an error that all ranks agree on."""
from __future__ import annotations

from typing import Any, Optional


class Ranks:
    """Created in each worker. agree() is collective: every worker of the engine calls it in the same order."""

    def __init__(self, parallel_config: Any):
        self._config = parallel_config

    @property
    def rank(self) -> int:
        return self._config.rank

    @property
    def may_raise(self) -> bool:
        """Whether this rank may raise an exception to vLLM."""
        own_processes = self._config.distributed_executor_backend == "mp"
        return not own_processes or self.rank % self._config.world_size == self._config.world_size - 1

    def agree(self, error: Optional[str]) -> Optional[str]:
        """Collects each rank's error (None: success); returns one error text, the same on all ranks, or None if no rank failed."""
        errors = {self.rank: error}
        for group in self._groups():
            errors = _all_gather(group, errors)
        failed = {rank: why for rank, why in sorted(errors.items()) if why is not None}
        if not failed:
            return None
        rank, why = next(iter(failed.items()))
        return why if len(failed) == len(errors) else f"rank {rank}: {why}"

    def _groups(self) -> list[Any]:
        """Exchanging errors along each of these groups in turn reaches every rank. vLLM's world group is not used: with data parallelism
        it spans several engines, and the others do not take part."""
        if self._config.world_size == 1:
            return []
        from vllm.distributed import parallel_state

        groups = [get() for name in ("get_tp_group", "get_pp_group", "get_pcp_group") if (get := getattr(parallel_state, name, None))]
        return [group for group in groups if group.world_size > 1]


def _all_gather(group: Any, errors: dict[int, Optional[str]]) -> dict[int, Optional[str]]:
    import torch

    parts: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(parts, errors, group=group.cpu_group)
    return {rank: why for part in parts for rank, why in part.items()}
