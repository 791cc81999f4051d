"""SGLang's side: where the trainer shares a version on this host's GPUs, SGLang's own loader takes its tensors from there instead of
from the files.

By SGLang's plug-in hooks (entry point ``sglang.srt.plugins``), so nothing of it is changed: installing the package is enough. Its
requests stay what they are: POST /update_weights_from_disk, and with it a mount's switch, and a start on a shared version. (A
--custom-weight-loader would be told of failures by nobody: what it raises ends the server.) WSYNC_STRATEGY in the server's
environment: "auto" (the GPUs where the version is shared, else the files), "disk", "cuda_ipc" (the files never). Importing this
imports no SGLang."""
from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any, Callable, Optional

__all__ = ["register"]

log = logging.getLogger("sglang.wsync")
TARGET = "sglang.srt.model_loader.loader.DefaultModelLoader._get_weights_iterator"
_complete: dict[str, frozenset[str]] = {}  # by prefix, the names that were loaded last: what a share has to have


def register() -> None:
    """Tells SGLang of the hook; SGLang calls it in each of its processes."""
    try:
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    except ImportError as e:
        log.info("this SGLang has no plug-ins, so versions are loaded from their files: %s", e)
        return
    HookRegistry.register(TARGET, weights_iterator, HookType.AROUND)


def weights_iterator(original: Callable[..., Iterator[tuple[str, Any]]], loader: Any, source: Any, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
    """Around SGLang's: (name, tensor) of a source, from the GPUs where that can be."""
    weights = _shared(source)
    if weights is None:
        return _noted(source.prefix, original(loader, source, *args, **kwargs))
    return _noted(source.prefix, _pairs(source.prefix, weights))


def _shared(source: Any) -> Optional[Any]:
    """The version on the GPUs; None: it is loaded from its files, and why is logged. What it raises SGLang answers."""
    from .._gpu import SHARED
    from .._strategy import AUTO, CUDA_IPC, DISK, open_version, parse

    path, strategy = source.model_or_path, os.environ.get("WSYNC_STRATEGY") or AUTO
    if CUDA_IPC not in parse(strategy) or getattr(source, "allow_patterns_overrides", None):
        return None
    if strategy == AUTO and not os.path.exists(os.path.join(path, SHARED)):
        return None
    opened = open_version(path, strategy, None, _wanted(path, source.prefix), log)
    if opened.strategy == DISK:
        opened.weights.close()
        return None
    log.info("%s is loaded from the memory that its trainer shares on the GPUs", path)
    return opened.weights


def _wanted(path: str, prefix: str) -> frozenset[str]:
    """The names that a version has to have: those of the one before, else those of its own files."""
    if prefix not in _complete:
        from .._weights import open as open_weights

        with open_weights(path, "torch") as weights:
            _complete[prefix] = frozenset(weights)
    return _complete[prefix]


def _pairs(prefix: str, weights: Any) -> Iterator[tuple[str, Any]]:
    with weights:
        for name in weights:
            yield prefix + name, weights[name]


def _noted(prefix: str, pairs: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    names = set()
    for name, tensor in pairs:
        names.add(name[len(prefix) :])
        yield name, tensor
    _complete[prefix] = frozenset(names)
