"""Has vLLM's own methods that change weights tell the worker's patcher."""
from __future__ import annotations

import functools
import logging
from typing import Any, Optional

from ._loader import get_loader
from ._watch import StartRecording

_TOLD = "_wsync_told"


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


def patcher(worker: Any) -> Optional[Any]:
    """The worker's, if it has one: see _patch.patcher_of."""
    return getattr(worker, "wsync_patcher", None)


def _load(original: Any) -> Any:
    @functools.wraps(original)
    def load_model(worker: Any, *args: Any, **kwargs: Any) -> Any:
        said = original(worker, *args, **kwargs)
        recording: Optional[StartRecording] = getattr(worker, "wsync_recording", None)
        if recording is not None and recording.recorder is not None and recording.model is not None:
            from ..patch._patcher import Proved
            from ._patch import patcher_of

            patcher_of(worker).adopt(Proved(recording.recorder, recording.model, worker.vllm_config.model_config.model))
            recording.recorder = None
        return said

    return load_model


def _reload(original: Any) -> Any:
    @functools.wraps(original)
    def reload_weights(worker: Any, *args: Any, **kwargs: Any) -> Any:
        get_loader(worker.model_runner.get_model(), worker.vllm_config, getattr(worker, "wsync_start", None)).check_reload()
        told = patcher(worker)
        if told is not None:
            told.forget("a reload by vLLM did not end")
        said = original(worker, *args, **kwargs)
        if told is not None:
            given = args[0] if args else kwargs.get("weights_iterator")
            told.forget(None if given is None else "weights were loaded that are of no file")
        return said

    return reload_weights


def _update(original: Any) -> Any:
    @functools.wraps(original)
    def update_weights(worker: Any, *args: Any, **kwargs: Any) -> Any:
        told, engine = patcher(worker), getattr(worker, "weight_transfer_engine", None)
        if told is not None and not type(engine).__module__.startswith("wsync."):  # wsync's own tells by its loader
            told.forget(f"weights were loaded by {type(engine).__name__}")
        return original(worker, *args, **kwargs)

    return update_weights


def _sleep(original: Any) -> Any:
    @functools.wraps(original)
    def sleep(worker: Any, level: int = 1, *args: Any, **kwargs: Any) -> Any:
        told = patcher(worker)
        if told is not None:
            told.asleep = True
            if level > 1:
                told.forget("the engine slept and has lost its weights")
        return original(worker, level, *args, **kwargs)

    return sleep


def _wake(original: Any) -> Any:
    @functools.wraps(original)
    def wake_up(worker: Any, *args: Any, **kwargs: Any) -> Any:
        said, told = original(worker, *args, **kwargs), patcher(worker)
        tags = args[0] if args else kwargs.get("tags")
        if told is not None and (tags is None or "weights" in tags):
            told.asleep = False
        return said

    return wake_up
