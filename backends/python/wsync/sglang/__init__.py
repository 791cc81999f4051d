"""SGLang's side: where the trainer shares a version on this host's GPUs, SGLang's own loader takes its tensors from there instead of
from the files.

By SGLang's plug-in hooks (entry point ``sglang.srt.plugins``), so nothing of it is changed: installing the package is enough. Its
requests stay what they are: POST /update_weights_from_disk, and with it a mount's switch, and a start on a shared version. (A
--custom-weight-loader would be told of failures by nobody: what it raises ends the server.) WSYNC_STRATEGY in the server's
environment: "auto" (the GPUs where the version is shared, else the files), "disk", "cuda_ipc" (the files never).

And a flush of its caches, or a load, also empties the one of image embeddings, which SGLang itself leaves as the old weights made it:
images that it has seen would keep the old tower's embeddings. /server_info says that this is so: internal_states[].wsync.
Importing this imports no SGLang."""
from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from typing import Any, Callable, Optional
from weakref import WeakKeyDictionary

__all__ = ["register"]

log = logging.getLogger("sglang.wsync")
TARGET = "sglang.srt.model_loader.loader.DefaultModelLoader._get_weights_iterator"
FLUSH = "sglang.srt.managers.scheduler.Scheduler.flush_cache"
STATE = "sglang.srt.managers.scheduler.Scheduler.get_internal_state"
EMBEDDINGS = ("sglang.srt.managers.mm_schedule", "sglang.srt.managers.mm_utils")  # where releases have their `embedding_cache`
# By the model's configuration, of which a draft model has its own, and by prefix: the names that were loaded last, which a share has to have.
_complete: "WeakKeyDictionary[Any, dict[str, frozenset[str]]]" = WeakKeyDictionary()


def register() -> None:
    """Tells SGLang of the hooks; SGLang calls it in each of its processes."""
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError as e:
        log.info("this SGLang has no plug-ins, so versions are loaded from their files: %s", e)
        return
    HookRegistry.register(TARGET, weights_iterator, HookType.AROUND)
    HookRegistry.register(FLUSH, flushed, HookType.AFTER)
    HookRegistry.register(STATE, stated, HookType.AFTER)


def flushed(done: Any, *_: Any, **__: Any) -> None:
    """After SGLang's flush: one that was refused, since requests run, leaves all as it is."""
    if done:
        forget_embeddings()


def forget_embeddings() -> None:
    """In the scheduler's own thread, between two of its steps."""
    for module in EMBEDDINGS:
        cache = getattr(sys.modules.get(module), "embedding_cache", None)
        if cache is not None:
            cache.clear()


def stated(said: Any, *_: Any, **__: Any) -> None:
    """After SGLang's look at its own state, which /server_info shows."""
    state = getattr(said, "internal_state", None)
    if isinstance(state, dict):
        state["wsync"] = {"forgets_embeddings": True}


def weights_iterator(original: Callable[..., Iterator[tuple[str, Any]]], loader: Any, source: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Around SGLang's: (name, tensor) of a source, from the GPUs where that can be."""
    weights = _shared(source)
    return _noted(source, original(loader, source, *args, **kwargs) if weights is None else _pairs(source.prefix, weights))


def _shared(source: Any) -> Optional[Any]:
    """The version on the GPUs; None: it is loaded from its files, and why is logged. What it raises SGLang answers."""
    from ..read._gpu import SHARED
    from ..read._strategy import AUTO, CUDA_IPC, DISK, open_version, parse

    path, strategy = source.model_or_path, os.environ.get("WSYNC_STRATEGY") or AUTO
    if CUDA_IPC not in parse(strategy) or getattr(source, "allow_patterns_overrides", None):
        return None
    if strategy == AUTO and not os.path.exists(os.path.join(path, SHARED)):
        return None
    opened = open_version(path, strategy, None, _wanted(source), log)
    if opened.strategy == DISK:
        opened.weights.close()
        return None
    log.info("%s is loaded from the memory that its trainer shares on the GPUs", path)
    return opened.weights


def _loaded(source: Any) -> dict[str, frozenset[str]]:
    """By prefix, what its model has loaded; of a source that names no model nothing is known, nor kept."""
    config = getattr(source, "model_config", None)
    try:
        return {} if config is None else _complete.setdefault(config, {})
    except TypeError:  # a configuration that can be no key
        return {}


def _wanted(source: Any) -> frozenset[str]:
    """The names that a version has to have: those of the one before, else those of its own files."""
    found = _loaded(source).get(source.prefix)
    if found is None:
        from ..read._weights import open as open_weights

        with open_weights(source.model_or_path, "torch") as weights:
            found = frozenset(weights)
    return found


def _pairs(prefix: str, weights: Any) -> Iterator[tuple[str, Any]]:
    with weights:
        for name in weights:
            yield prefix + name, weights[name]


def _noted(source: Any, pairs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    names = set()
    for name, tensor in pairs:
        names.add(name[len(source.prefix) :])
        yield name, tensor
    _loaded(source)[source.prefix] = frozenset(names)
    forget_embeddings()
