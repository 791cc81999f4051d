"""The workers of one engine: all of them load a version, or none does.

Where vLLM runs workers as processes of its own ("mp"), an exception of one rank leaves the replies of those after it unread, and
each later call gets the reply of the call before (0.32). So only the last rank raises there, and what it raises is the same on
all of them."""
from __future__ import annotations

from typing import Any, Optional


class Ranks:
    """Made in a worker; its calls are collective: every worker of the engine makes them in the same order."""

    def __init__(self, parallel_config: Any):
        self._config = parallel_config

    @property
    def rank(self) -> int:
        return self._config.rank

    @property
    def speaks(self) -> bool:
        """May this rank raise?"""
        own_processes = self._config.distributed_executor_backend == "mp"
        return not own_processes or self.rank % self._config.world_size == self._config.world_size - 1

    def agree(self, error: Optional[str]) -> Optional[str]:
        """What went wrong, on any rank; the same text for all."""
        said = {self.rank: error}
        for group in self._groups():
            said = _exchanged(group, said)
        found = {rank: why for rank, why in sorted(said.items()) if why is not None}
        if not found:
            return None
        rank, why = next(iter(found.items()))
        return why if len(found) == len(said) else f"rank {rank}: {why}"

    def _groups(self) -> list[Any]:
        """Along each of them all is passed on, so after the last every rank has heard of every other. Not vLLM's world group:
        with data parallelism it spans engines that hear of nothing."""
        if self._config.world_size == 1:
            return []
        from vllm.distributed import parallel_state

        groups = [get() for name in ("get_tp_group", "get_pp_group", "get_pcp_group") if (get := getattr(parallel_state, name, None))]
        return [group for group in groups if group.world_size > 1]


def _exchanged(group: Any, said: dict[int, Optional[str]]) -> dict[int, Optional[str]]:
    import torch

    parts: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(parts, said, group=group.cpu_group)
    return {rank: why for part in parts for rank, why in part.items()}
