"""Methods that /collective_rpc can call, by --worker-extension-cls wsync.vllm.Extension."""
from __future__ import annotations

from typing import Any

from ._path import version_path


class Extension:
    """vLLM mixes it into its worker's class. Each method is called on all workers and returns what JSON can hold; the server
    must be paused for wsync_load, as for vLLM's reload_weights.

        POST /collective_rpc {"method": "wsync_load", "kwargs": {"path": "/wsync/actor/42"}, "timeout": 300}
    """

    def wsync_load(self, path: str, force_layout: bool = False, strategy: str = "auto") -> Any:
        """Loads the version at path and returns what wsync_serving does, and "strategy" and "fallback". One that is refused is an error
        (500) that names what it lacks; the version before goes on. force_layout: its names, shapes and dtypes may differ from what
        is served. strategy: "cuda_ipc" (the memory that the trainer shares on this host's GPUs), "disk" (the mapped files),
        "cuda_ipc,disk" (fallback says why not the first), "auto" (the same, where the version is shared)."""
        from vllm.config import set_current_vllm_config

        from .._strategy import parse
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
        return served

    def wsync_check(self, path: str) -> dict[str, Any]:
        """{"ok", "error", "missing", "extra", "differing"} of the version at path against the one that is served; nothing is
        loaded."""
        return _loader(self).check(path)

    def wsync_serving(self) -> dict[str, Any]:
        """{"path", "model", "version", "run", "digest", "tensors", "rank", "broken"}."""
        return _loader(self).serving()


def _loader(worker: Any) -> Any:
    from ._loader import loader_of

    return loader_of(worker.model_runner.get_model(), worker.vllm_config)
