"""Watches the load that vLLM starts a worker with, so that later versions can be patched into its parameters."""
from __future__ import annotations

import functools
import logging
import os
from typing import Any, Optional

log = logging.getLogger("vllm.wsync")
_WATCHED = "_wsync_watched"


class StartRecording:
    """What the start has shown. recorder: None until the load is done; why: for what reason there is none."""

    def __init__(self) -> None:
        self.recorder: Any = None
        self.model: Any = None
        self.why = "the model was not loaded from files by vLLM's own loader when this worker started"


_starts: dict[int, StartRecording] = {}  # by the worker's configuration


def watch_start(vllm_config: Any) -> Optional[StartRecording]:
    """Called before a worker loads its model. Must not raise, or the worker would not start. None: vLLM's loader is not where it was."""
    if os.environ.get("WSYNC_PATCH") == "0":
        return None
    try:
        from vllm.model_executor.model_loader.base_loader import BaseModelLoader
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        if not getattr(BaseModelLoader, _WATCHED, False):
            BaseModelLoader.load_model = _watched_load(BaseModelLoader.load_model)
            DefaultModelLoader.get_all_weights = _watched_weights(DefaultModelLoader.get_all_weights)
            setattr(BaseModelLoader, _WATCHED, True)
    except (ImportError, AttributeError) as e:
        log.info("this vLLM's loads cannot be watched, so versions are loaded whole: %s", e)
        return None
    start = StartRecording()
    _starts[id(vllm_config.model_config)] = start
    return start


def _start_of(model_config: Any) -> Optional[StartRecording]:
    return _starts.get(id(model_config))


def _watched_load(load: Any) -> Any:
    @functools.wraps(load)
    def load_model(loader: Any, vllm_config: Any, model_config: Any, *args: Any, **kwargs: Any) -> Any:
        start = _start_of(model_config)
        if start is None or start.model is not None:
            return load(loader, vllm_config, model_config, *args, **kwargs)  # a draft model
        from ..patch._recorder import Recorder

        start.recorder = Recorder()
        try:
            with start.recorder:
                start.model = load(loader, vllm_config, model_config, *args, **kwargs)
        except BaseException:
            start.recorder = None
            raise
        return start.model

    return load_model


def _watched_weights(weights: Any) -> Any:
    @functools.wraps(weights)
    def get_all_weights(loader: Any, model_config: Any, model: Any) -> Any:
        start = _start_of(model_config)
        pairs = weights(loader, model_config, model)
        if start is None or start.recorder is None or start.model is not None:
            return pairs
        start.recorder.own(model)
        return start.recorder.sources(pairs)

    return get_all_weights
