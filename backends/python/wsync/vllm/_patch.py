"""Patches in vLLM's workers: what wsync.patch needs of vLLM, and what it must be told of loads by others."""
from __future__ import annotations

import functools
import logging
from typing import Any, Optional

from ..patch._patcher import Patcher, Proved
from ..read._weights import open as open_weights
from ._loader import Loader, Served, get_loader
from ._watch import StartRecording

_TOLD = "_wsync_told"


class WorkerEngine:
    """See wsync.patch._patcher.Engine."""

    def __init__(self, worker: Any, loader: Loader):
        self._worker, self._loader = worker, loader
        self.rank = loader.ranks.rank

    def serving(self) -> dict[str, Any]:
        return self._loader.serving()

    def is_served(self, path: str) -> bool:
        return self._loader.is_served(path)

    def note(self, path: str) -> None:
        with open_weights(path, "torch") as weights:
            self._loader.record_served(Served(weights))

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
    found = _patcher(worker)
    if found is None:
        loader = get_loader(worker.model_runner.get_model(), worker.vllm_config, getattr(worker, "wsync_start", None))
        found = loader.patcher = worker.wsync_patcher = Patcher(WorkerEngine(worker, loader))
    return found


def tell_of_loads() -> None:
    """Has vLLM's own methods that change weights tell the worker's patcher. Must not raise."""
    log = logging.getLogger("vllm.wsync")
    try:
        from vllm.v1.worker.gpu_worker import Worker  # the CPU's worker derives from it
    except ImportError as e:
        log.info("vLLM's worker is not where it was in 0.32: %s", e)
        return
    if getattr(Worker, _TOLD, False):
        return
    for method, tell in (("load_model", _load), ("reload_weights", _reload), ("update_weights", _update), ("sleep", _sleep), ("wake_up", _wake)):
        if hasattr(Worker, method):
            setattr(Worker, method, tell(getattr(Worker, method)))
    setattr(Worker, _TOLD, True)


def _patcher(worker: Any) -> Optional[Patcher]:
    return getattr(worker, "wsync_patcher", None)


def _load(original: Any) -> Any:
    @functools.wraps(original)
    def load_model(worker: Any, *args: Any, **kwargs: Any) -> Any:
        said = original(worker, *args, **kwargs)
        recording: Optional[StartRecording] = getattr(worker, "wsync_recording", None)
        if recording is not None and recording.recorder is not None and recording.model is not None:
            patcher_of(worker).adopt(Proved(recording.recorder, recording.model, worker.vllm_config.model_config.model))
            recording.recorder = None
        return said

    return load_model


def _reload(original: Any) -> Any:
    @functools.wraps(original)
    def reload_weights(worker: Any, *args: Any, **kwargs: Any) -> Any:
        get_loader(worker.model_runner.get_model(), worker.vllm_config, getattr(worker, "wsync_start", None)).check_reload()
        patcher = _patcher(worker)
        if patcher is not None:
            patcher.forget("a reload by vLLM did not end")
        said = original(worker, *args, **kwargs)
        if patcher is not None:
            given = args[0] if args else kwargs.get("weights_iterator")
            patcher.forget(None if given is None else "weights were loaded that are of no file")
        return said

    return reload_weights


def _update(original: Any) -> Any:
    @functools.wraps(original)
    def update_weights(worker: Any, *args: Any, **kwargs: Any) -> Any:
        patcher, engine = _patcher(worker), getattr(worker, "weight_transfer_engine", None)
        if patcher is not None and not type(engine).__module__.startswith("wsync."):  # wsync's own tells by its loader
            patcher.forget(f"weights were loaded by {type(engine).__name__}")
        return original(worker, *args, **kwargs)

    return update_weights


def _sleep(original: Any) -> Any:
    @functools.wraps(original)
    def sleep(worker: Any, level: int = 1, *args: Any, **kwargs: Any) -> Any:
        patcher = _patcher(worker)
        if patcher is not None:
            patcher.asleep = True
            if level > 1:
                patcher.forget("the engine slept and has lost its weights")
        return original(worker, level, *args, **kwargs)

    return sleep


def _wake(original: Any) -> Any:
    @functools.wraps(original)
    def wake_up(worker: Any, *args: Any, **kwargs: Any) -> Any:
        said, patcher = original(worker, *args, **kwargs), _patcher(worker)
        tags = args[0] if args else kwargs.get("tags")
        if patcher is not None and (tags is None or "weights" in tags):
            patcher.asleep = False
        return said

    return wake_up
