"""Worker methods for /collective_rpc, added by --worker-extension-cls wsync.vllm.Extension."""
from __future__ import annotations

from typing import Any, Optional

from ._path import version_path


class Extension:
    """vLLM mixes it into its worker class. Each method is called on all workers and returns a JSON value; the server
    must be paused for wsync_load, as for vLLM's reload_weights.

        POST /collective_rpc {"method": "wsync_load", "kwargs": {"path": "/wsync/actor/42"}, "timeout": 300}
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Inspects the model path when the worker gets its configuration, before it loads: a link such as "current" may point to another
        version later. (vLLM has no other hook for an extension; it does not call __init__.)"""
        super().__setattr__(name, value)
        if name == "vllm_config":
            from ._cpu_reload import mend_reloads
            from ._loader import inspect_start
            from ._told import tell_of_loads
            from ._watch import watch_start

            mend_reloads(value)
            super().__setattr__("wsync_start", inspect_start(value))
            super().__setattr__("wsync_recording", watch_start(value))
            tell_of_loads()

    def wsync_load(self, path: str, force_layout: bool = False, strategy: str = "auto") -> Any:
        """Loads the version at path; returns what wsync_serving does, with "strategy" and "fallback". A refused version is an error (500)
        that names what is missing; the previous version stays loaded. force_layout: allows names, shapes and dtypes that differ from
        what is served. strategy: "cuda_ipc" (memory that the trainer shares on this host's GPUs), "disk" (the mapped files),
        "cuda_ipc,disk" (fallback says why cuda_ipc failed), "auto" (the same if the version is shared, else disk)."""
        from vllm.config import set_current_vllm_config

        from ..read._strategy import parse
        from ._loader import Refused
        from ._patch import forget_answers

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
            if loader.ranks.may_raise:
                raise
            return {"error": str(e)}  # the last rank raises it
        forget_answers(worker)
        return {**served, **_draft(worker)}

    def wsync_patch(self, stage: str, plan: Optional[str] = None, target: Optional[str] = None, base: Optional[str] = None) -> dict[str, Any]:
        """One stage of a switch that writes only what changed: "state", "prepare" (while requests run), "put" (paused), "undo", "drop", "verify";
        the README of backends/python has what each answers. It raises nothing: "ok" false and "why" are a refusal."""
        from ._patch import patcher_of

        return patcher_of(self).stage(stage, plan, target, base)

    def wsync_check(self, path: str) -> dict[str, Any]:
        """Compares the version at path with the served one without loading it: {"ok", "error", "missing", "extra", "differing"}."""
        return _loader(self).check(path)

    def wsync_serving(self) -> dict[str, Any]:
        """{"path", "model", "version", "run", "digest", "tensors", "rank", "broken", "patches": True}. If the engine has a draft model also "draft":
        "unchanged", since a load does not change the draft model, or "unknown"."""
        worker: Any = self
        return {**_loader(worker).serving(), **_draft(worker), "patches": True}


def _loader(worker: Any) -> Any:
    from ._loader import get_loader

    return get_loader(worker.model_runner.get_model(), worker.vllm_config, getattr(worker, "wsync_start", None))


def _draft(worker: Any) -> dict[str, str]:
    """A draft model has its own weights, or copies of the target's from the start; loading the target does not change them. {}: there is
    no draft model, for example with n-gram drafting."""
    runner = worker.model_runner
    if getattr(worker.vllm_config, "speculative_config", None) is None:
        return {}
    get = getattr(runner, "get_draft_model", None)
    if get is None and not hasattr(runner, "drafter"):
        return {"draft": "unknown"}
    model = get() if get is not None else getattr(runner.drafter, "model", None)
    return {} if model is None else {"draft": "unchanged"}
