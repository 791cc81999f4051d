"""Patches in vLLM's workers: what wsync.patch needs of vLLM."""
from __future__ import annotations

from typing import Any, Optional

from ..patch._patcher import Patcher
from ..read._weights import open as open_weights
from ._loader import Loader, Served, get_loader


class WorkerEngine:
    """See wsync.patch._patcher.Engine."""

    def __init__(self, worker: Any, loader: Loader):
        self._worker, self._loader = worker, loader
        self.rank = loader.ranks.rank

    def serving(self) -> dict[str, Any]:
        return self._loader.serving()

    def is_served(self, path: str) -> bool:
        return self._loader.is_served(path)

    def identify(self, path: str) -> Served:
        with open_weights(path, "torch") as weights:
            return Served(weights)

    def served(self) -> Served:
        served = self._loader.served
        assert served is not None  # is_served has said so
        return served

    def note(self, identity: Served) -> None:
        self._loader.record_served(identity)

    def refuses_modules(self, names: set[str]) -> Optional[str]:
        lost = self._loader.lost()
        return f"vLLM's reload loses parameters of this model, such as {lost[0]}" if lost else None

    def load_modules(self, path: str, names: set[str]) -> None:
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self._worker.vllm_config), open_weights(path, "torch") as weights:
            self._loader.fill_modules(weights, names)

    def forget_answers(self) -> None:
        forget_answers(self._worker)

    def agree(self, error: Optional[str]) -> Optional[str]:
        return self._loader.ranks.agree(error)


def forget_answers(worker: Any) -> None:
    """What vLLM's own reload resets."""
    for reset in ("reset_lora_state", "reset_encoder_cache", "reset_mm_cache"):
        getattr(worker.model_runner, reset, lambda: None)()


def patcher_of(worker: Any) -> Patcher:
    """The worker's, made by the first call after its model was loaded."""
    found: Optional[Patcher] = getattr(worker, "wsync_patcher", None)
    if found is None:
        loader = get_loader(worker.model_runner.get_model(), worker.vllm_config, getattr(worker, "wsync_start", None))
        found = loader.patcher = worker.wsync_patcher = Patcher(WorkerEngine(worker, loader))
    return found
