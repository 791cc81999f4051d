"""Loads a worker's model by vLLM's own layer-wise loader, from mapped files or from the memory that the trainer shares on the GPUs.

vLLM accepts a version that lacks a tensor, and then serves a mix of old and new weights; a load that fails leaves half a version,
which later loads do not fully repair. Therefore:
- a version is compared with the served one before any of it is loaded;
- after the load, every parameter must have been filled from it;
- a failed load is undone: the layers that it had begun get their tensors back, and the previous version is loaded again;
- all ranks of the engine load the version, or none does."""
from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union
from weakref import WeakKeyDictionary

from ..read._gpu import GpuWeights
from ..read._layout import Difference, Layout, LayoutError, summary
from ..read._shared_parameters import matcher, shared_parameters
from ..read._strategy import Opened, open_version
from ..patch._versions import KEYS, identity, is_version
from ..read._weights import Weights, open
from ._broadcast import ReceivedVersion
from ._cpu_reload import check_reload, pack_tied
from ._layerwise import load_in_progress, partly_filled_layers, restore_kernel_tensors, tied_parameters
from ._lost import lost_parameters
from ._ranks import Ranks

log = logging.getLogger("vllm.wsync")
#: parameters that vLLM derives from its configuration; checkpoints do not contain them
_NOT_IN_CHECKPOINTS = ("input_scale_ub",)


class Refused(RuntimeError):
    """A version was not loaded; the message says why, and what is served instead."""


Source = Union[Weights, GpuWeights, ReceivedVersion]


def display_name(weights: Source) -> str:
    """The version's name in messages: its path, and the number of a mounted version."""
    if isinstance(weights, ReceivedVersion):
        return weights.name
    return weights.path if weights.version is None else f"version {weights.version}@{weights.run} ({weights.path})"


class Served:
    """Describes a loaded version: path, name, layout; it holds no tensors."""

    def __init__(self, weights: Source):
        self.path, self.name = weights.path, display_name(weights)
        self.layout: Layout = weights.layout()
        if not isinstance(weights, Weights):  # reading the manifest would make the agent create files that it has not created yet
            self.manifest_keys = {"model": weights.model, "version": weights.version, "run": weights.run, "digest": None}
        else:
            self.manifest_keys = identity(weights)


@dataclass(frozen=True)
class Start:
    """The version that a worker was started with: vLLM's path for it, and what was found there."""

    path: str
    served: Served


def inspect_start(vllm_config: Any) -> Optional[Start]:
    """Describes the version at the model path; None if that is not a folder (a hub model may not be downloaded yet) or unreadable. Then
    the first call inspects it. Must not raise, or the worker would not start."""
    try:
        path = vllm_config.model_config.model
        if not os.path.isdir(path):
            return None
        with open(path, "torch") as weights:
            return Start(path, Served(weights))
    except Exception as e:
        log.warning("the version that this worker starts with cannot be inspected now: %s", _message(e))
        return None


class Loader:
    """The loader of one model in one worker. Used by the worker's thread only. draft: of a draft model, its own configuration, and the
    target's model, some of whose modules the draft model may use as its own (embeddings, head): a load of the draft model leaves
    those alone."""

    def __init__(self, model: Any, vllm_config: Any, start: Optional[Start] = None, draft: Optional["Draft"] = None):
        self._model, self._config = model, vllm_config
        self._model_config = draft.model_config if draft else vllm_config.model_config
        self._shared = shared_parameters(model, draft.target) if draft else frozenset()
        self.parallel_config = vllm_config.parallel_config
        self.ranks = Ranks(vllm_config.parallel_config)
        self._filled_parameters: Optional[set[str]] = None  # parameters that the first load filled
        self._broken: Optional[str] = None
        self._path: Optional[str] = None  # vLLM's model path when _served was determined
        self._served: Optional[Served] = None
        self.patcher: Any = None  # of wsync.patch: is told of loads
        self._lost: Optional[list[str]] = None  # once asked
        self._current_tensor = ""  # name of the tensor being loaded
        self._check_partial = False  # the version may lack tensors: look for partly filled layers after the load
        if start is not None and start.path == self._model_config.model:
            self._path, self._served = start.path, start.served
        self._served_version()

    # --- what is served ---
    def _served_version(self) -> Optional[Served]:
        """The served version: loaded here, at vLLM's start, or by vLLM's own reload. None if its files are unknown, for example after a
        start with dummy weights."""
        path = self._model_config.model
        if path != self._path and not (self._path and load_in_progress(self._model)):  # vLLM sets the path even if its reload fails
            self._path, self._served = path, None
            try:
                with open(_folder(path, self._model_config, self._config.load_config), "torch") as weights:
                    self._served = Served(weights)
            except (OSError, ValueError, ImportError) as e:
                log.warning("the layout that is served cannot be read: %s; the next version is checked only after it was loaded", e)
        return self._served

    def serving(self) -> dict[str, Any]:
        """Path, and for a mounted version model, version, run and digest; None if unknown. broken: why the weights in memory are not a
        complete version."""
        served = self._served_version()
        manifest_keys = served.manifest_keys if served else dict.fromkeys(KEYS)
        return {"path": served.path if served else self._path, **manifest_keys, "tensors": len(served.layout) if served else None,
                "rank": self.ranks.rank, "broken": self._broken}

    def is_served(self, path: str) -> bool:
        """Whether the version at path is the one that is served: see wsync.patch._patcher.Engine."""
        served = self._served_version()
        return served is not None and is_version(path, served.path, served.manifest_keys)

    @property
    def served(self) -> Optional[Served]:
        return self._served_version()

    # --- before a load ---
    def check(self, path: str) -> dict[str, Any]:
        """Whether the version at path could be loaded; changes nothing."""
        served = self._served_version()
        try:
            with open(path, "torch") as weights:
                difference = Difference.between(weights.layout(), served.layout) if served else Difference()
        except (OSError, ValueError) as e:
            return {"ok": False, "error": str(e), **Difference().as_json()}
        return {"ok": not difference, "error": None, **difference.as_json()}

    def _open(self, opening: Callable[[], Opened], force_layout: bool) -> Opened:
        """Opens the version and compares its layout with the served one. LayoutError, OSError, ValueError."""
        served = self._served_version()
        opened = opening()
        weights = opened.weights
        difference = Difference.between(weights.layout(), served.layout) if served else Difference()
        if served and difference and not force_layout:
            name = display_name(weights)
            weights.close()
            raise LayoutError(name, served.name, difference)
        self._check_partial = bool(difference.missing) if served else not force_layout
        return opened

    def _device(self) -> Any:
        """The model's device."""
        return next((p.device for p in self._model.parameters()), None)

    def check_reload(self) -> None:
        """Raises RuntimeError where vLLM's reload would leave the model wrong, without an error of its own. Nothing has changed then."""
        check_reload(self._model, self._model_config)
        if lost := self.lost():
            raise RuntimeError(f"vLLM's reload loses {len(lost)} of this model's parameters, which would stay of the version before without an error "
                               f"({summary(lost)}): start the server anew on the version")

    def lost(self) -> list[str]:
        """Parameters that vLLM's reload loses."""
        served = self._served_version()
        if self._lost is None and served is not None:
            with _quiet_reload():
                self._lost = lost_parameters(self._model, served.layout)
        return self._lost or []

    # --- the load ---
    def load(self, path: str, force_layout: bool = False, strategy: Optional[str] = None) -> dict[str, Any]:
        """Loads the version at path, on all ranks or on none. force_layout: its names, shapes and dtypes may differ from the served
        one's, but it must still fill every parameter. strategy: see open_version. Returns what serving() does, with "strategy" (used) and
        "fallback" (why an earlier strategy failed). Raises Refused, the same on all ranks."""

        def opening() -> Opened:
            served = self._served
            return open_version(path, strategy, self._device(), served.layout.keys() if served and not force_layout else None, log)

        return self._load(path, opening, force_layout)

    def receive(self, make: Callable[[Any], ReceivedVersion], force_layout: bool = False) -> dict[str, Any]:
        """The same for a version received over a group; make(device) creates it."""
        return self._load("what was to be received", lambda: Opened(make(self._device()), "broadcast", None), force_layout)

    def _load(self, name: str, opening: Callable[[], Opened], force_layout: bool) -> dict[str, Any]:
        opened, new, error = None, None, None
        try:
            self.check_reload()
            opened = self._open(opening, force_layout)
            new = Served(opened.weights)  # read now: the mount may fail during the load
        except Exception as e:  # of any kind: the other ranks must learn of it
            error = _message(e)
        error = self.ranks.agree(error)
        if error:
            if opened is not None:
                opened.weights.close()
            raise Refused(f"{name} was not loaded and nothing has changed: {error}")
        assert opened is not None and new is not None
        self._tell_patcher("a load did not end")
        with opened.weights as weights:
            error = self.ranks.agree(self._try_fill(weights, new.name))
            if error:
                raise Refused(f"{new.name} was not loaded: {error}. {self._restore()}")
            self.record_served(new)
            self._tell_patcher(None)
        return {**self.serving(), "strategy": opened.strategy, "fallback": opened.fallback}

    def _try_fill(self, weights: Source, name: str) -> Optional[str]:
        """Fills the model; returns the error text or None. It does not return the exception, which would keep the load's tensors alive."""
        self._current_tensor = ""
        try:
            self._fill(weights)
        except Exception as e:
            log.exception("%s could not be loaded", name)
            return _message(e) + (f" (at tensor {self._current_tensor})" if self._current_tensor else "")
        return None

    def _fill(self, weights: Source) -> None:
        import torch
        from vllm.model_executor.model_loader.reload import layerwise

        restore_kernel_tensors(self._model)  # after a failed reload by vLLM itself
        tied = tied_parameters(self._model)
        layerwise.initialize_layerwise_reload(self._model)
        needed = self._needed()
        loaded = self._model.load_weights(self._pairs(weights))
        if loaded is None:
            log.info("this model does not say which parameters it loaded: only the version's names were checked")
        elif lacking := sorted(name for name in needed - loaded if not tied.get(name, frozenset()) & loaded):
            raise ValueError(f"it has nothing for {len(lacking)} of the model's parameters: {summary(lacking)}")
        if self._check_partial and (partial := partly_filled_layers(self._model)):
            raise ValueError(f"it has only a part of {len(partial)} of the model's layers: {summary(partial)}")
        layerwise.finalize_layerwise_reload(self._model, self._model_config)
        pack_tied(self._model)
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # before the files are closed
        if self._filled_parameters is None and loaded is not None:
            self._filled_parameters = set(loaded)

    def _pairs(self, weights: Source) -> Iterator[tuple[str, Any]]:
        """Yields (name, tensor): views of mapped files, of which a rank reads only the bytes that its part of the model needs, or of GPU
        memory."""
        is_shared = matcher(self._shared)
        for name in weights:
            self._current_tensor = name
            if not is_shared(name):
                yield name, weights[name]
        self._current_tensor = ""

    def _needed(self) -> set[str]:
        """The parameters that a version must fill."""
        if self._model_config.quantization is None or not self._served:
            return needed_parameters(self._model, bool(self._config.lora_config)) - self._shared
        return self._filled_parameters or set()  # only the loader knows which parameters a quantization derives itself

    def _tell_patcher(self, stale: Optional[str]) -> None:
        if self.patcher is not None:
            self.patcher.forget(stale)

    def fill_modules(self, weights: Weights, names: set[str]) -> None:
        """Loads the modules of these tensors alone, each of which must have all of its tensors here. Raises whatever fails; then they are of
        neither version."""
        import torch
        from vllm.model_executor.model_loader.reload import layerwise

        restore_kernel_tensors(self._model)
        try:
            with _quiet_reload():
                layerwise.initialize_layerwise_reload(self._model)
                self._model.load_weights((name, weights[name]) for name in weights if name in names)
                if partial := partly_filled_layers(self._model):
                    raise ValueError(f"only a part of {len(partial)} of the model's layers was loaded: {summary(partial)}")
                layerwise.finalize_layerwise_reload(self._model, self._model_config)
            pack_tied(self._model)
        finally:
            restore_kernel_tensors(self._model)
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def record_served(self, new: Served) -> None:
        """new is served from now on."""
        model_config = self._model_config
        self._served, self._broken = new, None
        if new.path is None:  # received over a group; there are no files
            self._path = model_config.model
            return
        # As in vLLM's reload_weights: a later reload without a path reloads this version.
        self._path = model_config.model = new.path
        model_config.model_weights, model_config.revision = "", None

    def _restore(self) -> str:
        """Reloads the previous version after a load that failed on some rank. Returns a sentence on what is served now."""
        error = self.ranks.agree(self._try_restore())
        if error is None:
            assert self._served is not None
            self._tell_patcher(None)
            return f"{self._served.name} was loaded again and is served"
        self._broken = f"{error}: load a complete version, or restart, before it is resumed"
        return f"What is in memory now is no version: {self._broken}"

    def _try_restore(self) -> Optional[str]:
        served = self._served
        try:
            restore_kernel_tensors(self._model)  # in any case: a request that meets a half-loaded layer kills vLLM
            if served is None or served.path is None:
                return "it is not known where the version before is" if served else "it is not known which version that was before"
            with open(served.path, "torch") as weights:
                difference = Difference.between(weights.layout(), served.layout)
                self._check_partial = False
                return f"{served.name} is another one now: {difference}" if difference else self._try_fill(weights, served.name)
        except Exception as e:
            return f"{served.name if served else 'the model'} cannot be loaded again: {_message(e)}"


def _message(e: Exception) -> str:
    return f"{type(e).__name__}: {e}" if str(e) else type(e).__name__


def _folder(model: str, model_config: Any, load_config: Any) -> str:
    """The folder of a model's files: the model itself if it is a folder, else in the hub's cache."""
    if os.path.isdir(model):
        return model
    from huggingface_hub import snapshot_download

    return snapshot_download(model, revision=model_config.revision, cache_dir=load_config.download_dir, local_files_only=True)


@dataclass(frozen=True)
class Draft:
    """What the loader of a draft model has to know beside it."""

    model_config: Any
    target: Any


def needed_parameters(model: Any, has_lora: bool = False) -> set[str]:
    """All parameters except those that vLLM's own check (for quantized models) allows a checkpoint to lack: empty ones, those of layers
    that quantize on the fly, and KV-cache scales."""
    needed = {name for name, p in model.named_parameters() if p.numel() and name.rpartition(".")[2] not in _NOT_IN_CHECKPOINTS}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "uses_meta_device", False) or any(c.__name__ == "BaseKVCacheMethod" for c in type(method).__mro__):
            needed -= {f"{name}.{p}" if name else p for p, _ in module.named_parameters()}
    return {name.replace(".base_layer.", ".") for name in needed} if has_lora else needed


@contextlib.contextmanager
def _quiet_reload() -> Iterator[None]:
    """vLLM warns of each module that a load gives nothing."""
    log_of_reloads = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    level = log_of_reloads.level
    log_of_reloads.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log_of_reloads.setLevel(level)


_loaders: "WeakKeyDictionary[Any, Loader]" = WeakKeyDictionary()


def get_loader(model: Any, vllm_config: Any, start: Optional[Start] = None, draft: Optional[Draft] = None) -> Loader:
    """The model's loader, shared by the back end and the extension. start: the result of inspect_start, if it was called. draft: if it is
    a draft model."""
    found = _loaders.get(model)
    if found is None:
        found = _loaders[model] = Loader(model, vllm_config, start, draft)
    return found
