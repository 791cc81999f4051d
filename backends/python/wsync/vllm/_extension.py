"""Methods that /collective_rpc can call, by --worker-extension-cls wsync.vllm.Extension."""
from __future__ import annotations

from typing import Any

from ._path import version_path


class Extension:
    """vLLM mixes it into its worker's class. Each method is called on all workers and returns what JSON can hold; the server
    must be paused for wsync_load, as for vLLM's reload_weights.

        POST /collective_rpc {"method": "wsync_load", "kwargs": {"path": "/wsync/actor/42"}, "timeout": 300}
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """A worker is given its configuration before it loads anything: what its path stands for is looked at then, since a link to a
        version ("current") stands for another one later. (vLLM has no other hook for an extension, whose __init__ it does not call.)"""
        super().__setattr__(name, value)
        if name == "vllm_config":
            from ._loader import look_at_start

            super().__setattr__("wsync_start", look_at_start(value))

    def wsync_load(self, path: str, force_layout: bool = False, strategy: str = "auto") -> Any:
        """Loads the version at path and returns what wsync_serving does, and "strategy" and "fallback". One that is refused is an error
        (500) that names what it lacks; the version before goes on. force_layout: its names, shapes and dtypes may differ from what
        is served. strategy: "cuda_ipc" (the memory that the trainer shares on this host's GPUs), "disk" (the mapped files),
        "cuda_ipc,disk" (fallback says why not the first), "auto" (the same, where the version is shared)."""
        from vllm.config import set_current_vllm_config

        from ..read._strategy import parse
        from ._loader import Refused

        worker: Any = self
        loader = _loader(worker)
        try:
            try:
                version_path(None, path, None)
                parse(strategy)
            except ValueError as e:
                raise Refused(str(e)) from None
            with set_current_vllm_config(worker.vllm_config):
                served = loader.load(path, force_layout, strategy)
        except Refused as e:
            if loader.ranks.speaks:
                raise
            return {"error": str(e)}  # the last rank says it
        for made_of_weights in ("reset_lora_state", "reset_encoder_cache", "reset_mm_cache"):
            getattr(worker.model_runner, made_of_weights, lambda: None)()
        return {**served, **_draft(worker)}

    def wsync_check(self, path: str) -> dict[str, Any]:
        """{"ok", "error", "missing", "extra", "differing"} of the version at path against the one that is served; nothing is
        loaded."""
        return _loader(self).check(path)

    def wsync_serving(self) -> dict[str, Any]:
        """{"path", "model", "version", "run", "digest", "tensors", "rank", "broken"}, and where the engine drafts with a model
        "draft": "unchanged", since that one stays as it was started, or "unknown"."""
        worker: Any = self
        return {**_loader(worker).serving(), **_draft(worker)}


def _loader(worker: Any) -> Any:
    from ._loader import loader_of

    return loader_of(worker.model_runner.get_model(), worker.vllm_config, getattr(worker, "wsync_start", None))


def _draft(worker: Any) -> dict[str, str]:
    """A draft model has weights of its own, or takes some of the target's at the start; no load of the target changes those. {}: there
    is none, as where n-grams are drafted with."""
    runner = worker.model_runner
    if getattr(worker.vllm_config, "speculative_config", None) is None:
        return {}
    get = getattr(runner, "get_draft_model", None)
    if get is None and not hasattr(runner, "drafter"):
        return {"draft": "unknown"}
    model = get() if get is not None else getattr(runner.drafter, "model", None)
    return {} if model is None else {"draft": "unchanged"}
