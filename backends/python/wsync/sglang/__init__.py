"""The SGLang plug-in: if the trainer shares a version on this host's GPUs, SGLang's own loader reads the tensors from there instead
of from the files.

It uses SGLang's plug-in hooks (entry point ``sglang.srt.plugins``): installing the package is enough, and SGLang is not patched.
SGLang's requests stay the same: POST /update_weights_from_disk, which a mount's switch also uses, and a start on a shared version. (A
--custom-weight-loader is not used, because an exception in it ends the server.) WSYNC_STRATEGY in the server's environment: "auto"
(the GPUs if the version is shared, else the files), "disk", "cuda_ipc" (never the files).

The plug-in also clears SGLang's cache of image embeddings at a flush and after a load. SGLang itself does not, so that images it has
seen would keep the embeddings of the old weights. /server_info reports this: internal_states[].wsync.

SGLang's load from disk feeds the target's files to its draft model, too. That is right if both were started on one checkpoint (MTP). A
draft model that was started on another one is left alone by the plug-in. It is loaded by a request of its own, in which the target is left
alone: {"model_path": the target's as it is, "manifest": {"wsync_draft": the draft's}}. SGLang passes the manifest on and does not read it.

A version of which little changed is patched into what is served; see _patch. Importing this module does not import SGLang."""
from __future__ import annotations

import contextlib
import logging
import os
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable, Optional
from weakref import WeakKeyDictionary

from . import _patch

__all__ = ["register"]

log = logging.getLogger("sglang.wsync")
TARGET = "sglang.srt.model_loader.loader.DefaultModelLoader._get_weights_iterator"
FLUSH = "sglang.srt.managers.scheduler.Scheduler.flush_cache"
UPDATE = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater.update_weights_from_disk"
LOAD = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager.update_weights_from_disk"
PROCESS = uuid.uuid4().hex[:16]  # another in each scheduler: a mount sees that a draft model is gone that it has loaded
DRAFT = "wsync_draft"  # in a request's manifest: the path of the draft model's files
MANIFEST = "sglang.srt.managers.io_struct.UpdateWeightFromDiskReqInput.manifest"
STATE = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"
EMBEDDINGS = ("sglang.srt.managers.mm_schedule", "sglang.srt.managers.mm_utils")  # `embedding_cache` is in one of them, depending on the release
# The names that were loaded last, by model configuration (a draft model has its own) and prefix. A shared version must have all of them.
_loaded_names: "WeakKeyDictionary[Any, dict[str, frozenset[str]]]" = WeakKeyDictionary()
# The path that each model was started on, by model configuration, the target's first.
_start_paths: "WeakKeyDictionary[Any, str]" = WeakKeyDictionary()


@dataclass
class DraftLoad:
    """A load of the draft model alone. target: the target's model, once its turn has come."""

    path: str
    target: Any = None
    is_done: bool = False


_draft_load: Optional[DraftLoad] = None  # that is under way, in the scheduler's thread


def register() -> None:
    """Registers the hooks. SGLang calls it in each of its processes."""
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError as e:
        log.info("this SGLang has no plug-ins, so versions are loaded from their files: %s", e)
        return
    HookRegistry.register(TARGET, weights_iterator, HookType.AROUND)
    HookRegistry.register(FLUSH, after_flush, HookType.AFTER)
    HookRegistry.register(STATE, add_internal_state, HookType.AFTER)
    HookRegistry.register(UPDATE, update_from_disk, HookType.AROUND)
    HookRegistry.register(LOAD, load_from_disk, HookType.AROUND)
    for target, hook, kind in _patch.hooks(HookType):
        HookRegistry.register(target, hook, kind)


def after_flush(done: Any, *_: Any, **__: Any) -> None:
    """Hook after SGLang's flush_cache. done is false if SGLang refused the flush because requests are running."""
    if done:
        clear_embeddings()


def clear_embeddings() -> None:
    """Runs in the scheduler's thread, between two steps."""
    for module in EMBEDDINGS:
        cache = getattr(sys.modules.get(module), "embedding_cache", None)
        if cache is not None:
            cache.clear()


def add_internal_state(said: Any, scheduler: Any = None, *_: Any, **__: Any) -> None:
    """Hook after SGLang's get_internal_state, which /server_info shows."""
    state = getattr(said, "internal_state", None)
    if isinstance(state, dict):
        state["wsync"] = {"forgets_embeddings": True, "freezes_draft": _has(UPDATE), "loads_draft": _has(UPDATE) and _has(LOAD) and _has(MANIFEST),
                          "patches": _has(_patch.CHECK) and _has(LOAD) and _has(MANIFEST), "process": PROCESS}
        # Newer releases keep what is released in the scheduler's weight_updater; a release that keeps it elsewhere says nothing.
        released = getattr(getattr(scheduler, "weight_updater", scheduler), "offload_tags", None)
        if isinstance(released, (set, frozenset)):
            state["wsync"]["released"] = sorted(released)


def _has(member: str) -> bool:
    """Whether this release has that member of a class, as seen in a scheduler."""
    module, cls, name = member.rsplit(".", 2)
    return hasattr(getattr(sys.modules.get(module), cls, None), name)


def load_from_disk(original: Callable[..., Any], manager: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
    """Hook around the load from disk of all models, each of which update_from_disk stands around."""
    global _draft_load
    manifest = getattr(request, "manifest", None) or {}
    if _patch.NOTE in manifest:
        success, message = _patch.note(manager, request)
        from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqOutput

        return UpdateWeightFromDiskReqOutput(success=success, message=message)
    path = manifest.get(DRAFT)
    if path is None:
        _patch.forget(manager, "a load did not end")
        said = original(manager, request, *args, **kwargs)
        if said.success:
            _patch.forget(manager, None)
        return said
    _draft_load = load = DraftLoad(path)
    try:
        said = original(manager, request, *args, **kwargs)
    finally:
        _draft_load = None
    return said if load.is_done or not said.success else type(said)(success=False, message="There is no draft model.", num_paused_requests=0)


def update_from_disk(original: Callable[..., tuple[bool, str]], updater: Any, *args: Any, **kwargs: Any) -> tuple[bool, str]:
    """Hook around the load from disk of one model, of the target and then of a draft model. Nothing of a draft model with files of its own is
    touched: its layers would be processed anew, also without tensors."""
    config = updater.model_config
    if _draft_load is not None:
        return _load_draft(_draft_load, original, updater, *args, **kwargs)
    if not getattr(config, "is_draft_model", False):
        return original(updater, *args, **kwargs)
    own, targets = _start_paths.get(config), [path for c, path in _start_paths.items() if not getattr(c, "is_draft_model", False)]
    if own is None or not targets:
        return False, "wsync does not know which checkpoint the draft model was started on, so it loads none into it"
    return original(updater, *args, **kwargs) if own in targets else (True, "The draft model has files of its own and was left as it is.")


def _load_draft(load: DraftLoad, original: Callable[..., tuple[bool, str]], updater: Any, _path: str, *args: Any, **kwargs: Any) -> tuple[bool, str]:
    """The target comes first, and stays. What the draft model shares with it is left as it is. SGLang accepts a version that lacks tensors."""
    from ..read._layout import summary
    from ..read._shared_parameters import matcher, shared_parameters
    from ..read._weights import open as open_weights

    if not getattr(updater.model_config, "is_draft_model", False):
        load.target = updater.get_model()
        return True, "The target was left as it is."
    had = frozenset().union(*_loaded_names.get(updater.model_config, {}).values())
    try:
        with open_weights(load.path, "torch") as weights:
            lacking = sorted(had.difference(weights))
    except (OSError, ValueError, TypeError) as e:  # TypeError: what the request names is no path
        return False, f"The draft model was not loaded and has not changed: {e}"
    if lacking:
        return False, f"The draft model was not loaded and has not changed: {load.path} lacks {len(lacking)} of its tensors: {summary(lacking)}"
    is_shared = matcher(shared_parameters(updater.get_model(), load.target))
    load.is_done = True
    return original(updater, load.path, *args, weight_name_filter=lambda name: not is_shared(name), **kwargs)


def weights_iterator(original: Callable[..., Iterator[tuple[str, Any]]], loader: Any, source: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Hook around SGLang's iterator: yields (name, tensor) of a source, from the GPUs if possible."""
    config = getattr(source, "model_config", None)
    with contextlib.suppress(TypeError):  # none, or one that is not hashable
        _start_paths.setdefault(config, source.model_or_path)
    weights = _open_shared(source)
    return _record_names(source, _patch.watched(original(loader, source, *args, **kwargs) if weights is None else _pairs(source.prefix, weights)))


def _open_shared(source: Any) -> Optional[Any]:
    """The version shared on the GPUs; None: SGLang loads the files, and the reason is logged. SGLang answers with what this raises."""
    from ..read._gpu import SHARED
    from ..read._strategy import AUTO, CUDA_IPC, DISK, open_version, parse

    path, strategy = source.model_or_path, os.environ.get("WSYNC_STRATEGY") or AUTO
    if CUDA_IPC not in parse(strategy) or getattr(source, "allow_patterns_overrides", None):
        return None
    if strategy == AUTO and not os.path.exists(os.path.join(path, SHARED)):
        return None
    opened = open_version(path, strategy, None, _required_names(source), log)
    if opened.strategy == DISK:
        opened.weights.close()
        return None
    log.info("%s is loaded from the memory that its trainer shares on the GPUs", path)
    return opened.weights


def _names_by_prefix(source: Any) -> dict[str, frozenset[str]]:
    """The loaded names of the source's model, by prefix; an unconnected {} if the source has no usable model configuration."""
    config = getattr(source, "model_config", None)
    try:
        return {} if config is None else _loaded_names.setdefault(config, {})
    except TypeError:  # a configuration that is not hashable
        return {}


def _required_names(source: Any) -> frozenset[str]:
    """The names that a shared version must have: those of the previous load, else those of its own files."""
    found = _names_by_prefix(source).get(source.prefix)
    if found is None:
        from ..read._weights import open as open_weights

        with open_weights(source.model_or_path, "torch") as weights:
            found = frozenset(weights)
    return found


def _pairs(prefix: str, weights: Any) -> Iterator[tuple[str, Any]]:
    with weights:
        for name in weights:
            yield prefix + name, weights[name]


def _record_names(source: Any, pairs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    names = set()
    for name, tensor in pairs:
        names.add(name[len(source.prefix) :])
        yield name, tensor
    _names_by_prefix(source)[source.prefix] = frozenset(names)
    clear_embeddings()
