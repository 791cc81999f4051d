"""Patches in SGLang's schedulers: POST /weights_checker {"action": "wsync_patch:{...}"}, which SGLang passes to every scheduler between two
steps, also while requests run. The answer of each rank is in "ranks", as the text checksums.wsync_patch."""
from __future__ import annotations

import json
import logging
import os
from typing import Any, Callable, Optional
from weakref import WeakKeyDictionary

log = logging.getLogger("sglang.wsync")
PREFIX = "wsync_patch:"
NOTE = "wsync_patch"  # in the manifest of a load from disk: what is served is noted, nothing is loaded
_MANAGER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager."
CHECK = _MANAGER + "check_weights"
OTHER_LOADS = tuple(_MANAGER + name for name in ("begin_weight_update", "update_weights_from_distributed", "update_weights_from_tensor",
                                                 "update_weights_from_ipc"))
SLEEP, WAKE = _MANAGER + "release_memory_occupation", _MANAGER + "resume_memory_occupation"
START, FILL = ("sglang.srt.model_loader.loader.DefaultModelLoader." + name for name in ("load_model", "load_weights_only"))
_KEYS = ("model", "version", "run", "digest")


_recorder: Optional[Any] = None  # of the watched load that is under way in this process
_proved: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()  # by model
_patchers: "WeakKeyDictionary[Any, Any]" = WeakKeyDictionary()  # by model


def hooks(types: Any) -> list[tuple[str, Callable[..., Any], Any]]:
    """(what, the hook, its type) of all."""
    return [(START, start, types.AROUND), (FILL, before_fill, types.BEFORE), (CHECK, check_weights, types.AROUND), (SLEEP, sleep, types.AROUND),
            (WAKE, wake, types.AROUND), *((name, other_load, types.AROUND) for name in OTHER_LOADS)]


# --- the start ---
def start(original: Callable[..., Any], loader: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook around the load of a model at the start: the target's is watched."""
    global _recorder
    config = kwargs.get("model_config")
    if os.environ.get("WSYNC_PATCH") == "0" or config is None or getattr(config, "is_draft_model", False) or _proved:
        return original(loader, *args, **kwargs)
    from ..patch._patcher import Proved
    from ..patch._recorder import Recorder

    _recorder = recorder = Recorder()
    try:
        with recorder:
            model = original(loader, *args, **kwargs)
    finally:
        _recorder = None
    _proved[model] = Proved(recorder, model, config.model_path)
    return model


def before_fill(model: Any, *_: Any, **__: Any) -> None:
    """Hook before a model is filled, from its start on."""
    if _recorder is not None:
        _recorder.own(model)


def watched(pairs: Any) -> Any:
    """The loader's tensors, noted while a start is watched."""
    return pairs if _recorder is None else _recorder.sources(pairs)


# --- a worker ---
class SchedulerEngine:
    """See wsync.patch._patcher.Engine."""

    def __init__(self, manager: Any, runner: Any):
        self._manager, self._runner = manager, runner
        self.rank = _rank()
        self._identity: tuple[Optional[str], dict[str, Any]] = (None, {})
        self.serving()

    def serving(self) -> dict[str, Any]:
        path = self._runner.model_config.model_path
        if path != self._identity[0]:  # SGLang has loaded another
            try:
                self._identity = self.identify(path)
            except (OSError, ValueError) as e:
                log.warning("the version that is served cannot be read: %s", e)
                self._identity = path, dict.fromkeys(_KEYS)
        return {"path": path, **self._identity[1], "broken": self._broken()}

    def _broken(self) -> Optional[str]:
        return "pipeline stages are not patched" if _stages() > 1 else None

    def is_served(self, path: str) -> bool:
        from ..patch._versions import is_version

        serving = self.serving()
        return is_version(path, serving["path"], {key: serving[key] for key in _KEYS})

    def identify(self, path: str) -> tuple[str, dict[str, Any]]:
        from ..patch._versions import identity
        from ..read._weights import open as open_weights

        with open_weights(path, "torch") as weights:
            return path, identity(weights)

    def served(self) -> tuple[Optional[str], dict[str, Any]]:
        return self._identity

    def note(self, identity: tuple[str, dict[str, Any]]) -> None:
        self._identity = identity
        self._runner.model_config.model_path = identity[0]

    def refuses_modules(self, names: set[str]) -> Optional[str]:
        return "SGLang's loader processes all layers anew, also those without tensors"

    def load_modules(self, path: str, names: set[str]) -> None:
        raise NotImplementedError(self.refuses_modules(names))

    def forget_answers(self) -> None:
        from . import clear_embeddings

        clear_embeddings()

    def agree(self, error: Optional[str]) -> Optional[str]:
        errors = _all_gather(self._manager, error)
        return next((f"rank {rank}: {one}" for rank, one in enumerate(errors) if one is not None), None) if len(errors) > 1 else error


def _rank() -> int:
    import torch

    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def _stages() -> int:
    from sglang.srt.managers.scheduler_components.weight_updater import get_parallel

    return getattr(get_parallel(), "pp_size", 1)


def _all_gather(manager: Any, one: Any) -> list[Any]:
    import torch

    size = torch.distributed.get_world_size(group=manager.tp_cpu_group)
    found = [one] * size
    if size > 1:
        torch.distributed.all_gather_object(found, one, group=manager.tp_cpu_group)
    return found


def patcher_of(manager: Any) -> Any:
    """The scheduler's, made by the first call."""
    from ..patch._patcher import Patcher

    runner = next(runner for role, runner in manager._select_runners("target") if role == "target")
    model = runner.model
    found = _patchers.get(model)
    if found is None:
        found = _patchers[model] = Patcher(SchedulerEngine(manager, runner))
        if model in _proved:
            found.adopt(_proved[model])
    return found


def check_weights(original: Callable[..., Any], manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook around SGLang's check of weights: a stage, where that is asked for."""
    action = getattr(request, "action", None)
    if not isinstance(action, str) or not action.startswith(PREFIX):
        return original(manager, request, *args, **kwargs)
    from sglang.srt.managers.io_struct import CheckWeightsReqOutput, ChecksumInfo

    try:
        asked = json.loads(action[len(PREFIX) :])
        wanted = {key: asked.get(key) for key in ("stage", "plan", "target", "base")}
    except (ValueError, AttributeError) as e:
        return CheckWeightsReqOutput(success=False, message=f"after {PREFIX} comes an object of JSON: {e}")
    said = json.dumps(patcher_of(manager).stage(**wanted))
    payload = [ChecksumInfo(checksums={"wsync_patch": one}, per_gpu_checksum="", parallelism_info=[]) for one in _all_gather(manager, said)]
    return CheckWeightsReqOutput(success=True, message="wsync_patch", payload=payload)


def note(manager: Any, request: Any) -> tuple[bool, str]:
    """Of a load from disk that loads nothing: whether the plan is in the state that the request's path says."""
    asked = request.manifest[NOTE]
    state = patcher_of(manager).stage("state")
    identity = asked.get("plan") if isinstance(asked, dict) else None
    if identity is None or state["plan"] != identity:
        return False, f"wsync holds no plan {str(identity)[:80]}, so nothing was noted, and nothing loaded"
    if not patcher_of(manager).serves(request.model_path):
        return False, f"{request.model_path} is not what is served, so nothing was noted, and nothing loaded"
    manager.record_weight_version_after_update(request.weight_version)
    return True, "Noted."


# --- loads by others ---
def _found(manager: Any) -> Optional[Any]:
    """The scheduler's patcher if there is one."""
    if not _patchers:
        return None
    return next((_patchers[runner.model] for _, runner in manager._select_runners("target") if runner.model in _patchers), None)


def _watched(manager: Any) -> Optional[Any]:
    """The scheduler's patcher; None where no start was watched, so that there is nothing to patch by."""
    return patcher_of(manager) if _proved else None


def forget(manager: Any, stale: Optional[str]) -> None:
    """A load by SGLang begins (stale: that it did not end), or has ended."""
    found = _found(manager)
    if found is not None:
        found.forget(stale)


def other_load(original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook around loads that come from no files."""
    patcher = _watched(manager)
    if patcher is not None:
        patcher.forget("weights were loaded that are of no file")
    return original(manager, *args, **kwargs)


def sleep(original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook around the release of memory, of weights too: they are lost."""
    tags = getattr(args[0] if args else None, "tags", None)
    patcher = _watched(manager)
    if patcher is not None and (not tags or "weights" in tags):
        patcher.asleep = True
        patcher.forget("the memory of the weights was released")
    return original(manager, *args, **kwargs)


def wake(original: Callable[..., Any], manager: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook around its return."""
    said, tags = original(manager, *args, **kwargs), getattr(args[0] if args else None, "tags", None)
    patcher = _watched(manager)
    if patcher is not None and (not tags or "weights" in tags):
        patcher.asleep = False
    return said
