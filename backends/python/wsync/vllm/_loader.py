"""A worker's model, loaded from a path by vLLM's own loader, layer by layer, out of the mapped files or of the memory that the
trainer shares on the GPUs.

vLLM takes a version that lacks a tensor and serves a mix of old and new weights; of one that it cannot take it keeps half, and
no later load brings all of that back. So here
- a version is compared with the one that is served before anything of it is loaded;
- after the load every parameter must have come from it;
- a load that failed is undone: what vLLM had begun is taken back, and the version before is loaded again;
- all of it on all ranks of the engine, or on none."""
from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union
from weakref import WeakKeyDictionary

from ..read._gpu import GpuWeights
from ..read._layout import Difference, Layout, LayoutError, named
from ..read._strategy import Opened, open_version
from ..read._weights import Weights, open
from ._broadcast import Received
from ._ranks import Ranks

log = logging.getLogger("vllm.wsync")
#: parameters that vLLM makes of its configuration: no checkpoint has them
_NOT_OF_CHECKPOINTS = ("input_scale_ub",)


class Refused(RuntimeError):
    """A version that was not loaded, why, and what is served instead."""


_OF_MOUNT = ("model", "version", "run", "digest")
Source = Union[Weights, GpuWeights, Received]


def called(weights: Source) -> str:
    """What a person calls it. vLLM's answers have no paths, so a mounted version's number is needed too."""
    if isinstance(weights, Received):
        return weights.name
    return weights.path if weights.version is None else f"version {weights.version}@{weights.run} ({weights.path})"


class Served:
    """The version that a model has: headers and names, no memory of it."""

    def __init__(self, weights: Source):
        self.path, self.name = weights.path, called(weights)
        self.layout: Layout = weights.layout()
        if not isinstance(weights, Weights):  # its files may not be made yet, and a look at their manifest would make them
            self.of_mount = {"model": weights.model, "version": weights.version, "run": weights.run, "digest": None}
        else:
            manifest = weights._manifest()
            self.of_mount = {key: manifest.get(key) for key in _OF_MOUNT}


@dataclass(frozen=True)
class Start:
    """What a worker was started with: vLLM's word for it, and what that stood for."""

    path: str
    served: Served


def look_at_start(vllm_config: Any) -> Optional[Start]:
    """None: it is no folder (a hub's files may not be here yet), or cannot be read; then it is looked at with the first call. Must not
    raise: the worker would not start."""
    try:
        path = vllm_config.model_config.model
        if not os.path.isdir(path):
            return None
        with open(path, "torch") as weights:
            return Start(path, Served(weights))
    except Exception as e:
        log.warning("what this worker starts with cannot be looked at now: %s", _sentence(e))
        return None


class Loader:
    """Of one model in one worker. Used by the worker's own thread."""

    def __init__(self, model: Any, vllm_config: Any, start: Optional[Start] = None):
        self._model, self._config = model, vllm_config
        self.parallel_config = vllm_config.parallel_config
        self.ranks = Ranks(vllm_config.parallel_config)
        self._filled: Optional[set[str]] = None  # parameters that the first load filled
        self._broken: Optional[str] = None
        self._path: Optional[str] = None  # vLLM's own word for what it loaded last
        self._served: Optional[Served] = None
        self._at = ""  # the tensor that a load is at
        self._in_doubt = False  # the names of the version that is loaded are not known to be all
        if start is not None and start.path == vllm_config.model_config.model:
            self._path, self._served = start.path, start.served
        self._look()

    # --- what is served ---
    def _look(self) -> Optional[Served]:
        """What a version is compared with: what was loaded here, or vLLM was started with, or reloaded by itself. None: no such
        files here, as when it was started with weights that it made up."""
        path = self._config.model_config.model
        if path != self._path and not (self._path and _begun(self._model)):  # vLLM names a reload's path also when it failed
            self._path, self._served = path, None
            try:
                with open(_folder(path, self._config), "torch") as weights:
                    self._served = Served(weights)
            except (OSError, ValueError, ImportError) as e:
                log.warning("what is served cannot be compared with: %s; the next version is checked after it was loaded only", e)
        return self._served

    def serving(self) -> dict[str, Any]:
        """Path, and of a mounted version model, version, run and digest; None where it is not known. broken: why what is in
        memory is no version."""
        served = self._look()
        of_mount = served.of_mount if served else dict.fromkeys(_OF_MOUNT)
        return {"path": served.path if served else self._path, **of_mount, "tensors": len(served.layout) if served else None,
                "rank": self.ranks.rank, "broken": self._broken}

    # --- before a load ---
    def check(self, path: str) -> dict[str, Any]:
        """Would it be loaded? Touches nothing."""
        served = self._look()
        try:
            with open(path, "torch") as weights:
                difference = Difference.between(weights.layout(), served.layout) if served else Difference()
        except (OSError, ValueError) as e:
            return {"ok": False, "error": str(e), **Difference().as_json()}
        return {"ok": not difference, "error": None, **difference.as_json()}

    def _open(self, opening: Callable[[], Opened], force_layout: bool) -> Opened:
        """Opens and compares. LayoutError, OSError, ValueError."""
        served = self._look()
        opened = opening()
        weights = opened.weights
        difference = Difference.between(weights.layout(), served.layout) if served else Difference()
        if served and difference and not force_layout:
            name = called(weights)
            weights.close()
            raise LayoutError(name, served.name, difference)
        self._in_doubt = bool(difference.missing) if served else not force_layout
        return opened

    def _device(self) -> Any:
        """Where the model is."""
        return next((p.device for p in self._model.parameters()), None)

    # --- the load ---
    def load(self, path: str, force_layout: bool = False, strategy: Optional[str] = None) -> dict[str, Any]:
        """Loads the version at path, on all ranks or on none; force_layout: it may have other names, shapes and dtypes than the
        one that is served, but must still fill every parameter. strategy: see open_version. Returns what serving does, with the
        strategy that was taken, and why none before it. Refused: on all ranks alike."""

        def opening() -> Opened:
            served = self._served
            return open_version(path, strategy, self._device(), served.layout.keys() if served and not force_layout else None, log)

        return self._load(path, opening, force_layout)

    def receive(self, make: Callable[[Any], Received], force_layout: bool = False) -> dict[str, Any]:
        """The same of a version that is sent; make: of the device."""
        return self._load("what was to be received", lambda: Opened(make(self._device()), "broadcast", None), force_layout)

    def _load(self, name: str, opening: Callable[[], Opened], force_layout: bool) -> dict[str, Any]:
        opened, fresh, error = None, None, None
        try:
            opened = self._open(opening, force_layout)
            fresh = Served(opened.weights)  # all that is said of it later: its mount may die in the middle of the load
        except Exception as e:  # whatever it is, the other ranks must hear of it
            error = _sentence(e)
        error = self.ranks.agree(error)
        if error:
            if opened is not None:
                opened.weights.close()
            raise Refused(f"{name} was not loaded and nothing has changed: {error}")
        assert opened is not None and fresh is not None
        with opened.weights as weights:
            error = self.ranks.agree(self._try(weights, fresh.name))
            if error:
                raise Refused(f"{fresh.name} was not loaded: {error}. {self._back()}")
            self._took(fresh)
        return {**self.serving(), "strategy": opened.strategy, "fallback": opened.fallback}

    def _try(self, weights: Source, name: str) -> Optional[str]:
        """What went wrong. Not the exception: it would keep the tensors of the load, and with them the version's memory."""
        self._at = ""
        try:
            self._fill(weights)
        except Exception as e:
            log.exception("%s could not be loaded", name)
            return _sentence(e) + (f" (at tensor {self._at})" if self._at else "")
        return None

    def _fill(self, weights: Source) -> None:
        import torch
        from vllm.model_executor.model_loader.reload import layerwise

        _undo(self._model)  # a reload of vLLM's own that failed
        layerwise.initialize_layerwise_reload(self._model)
        needed = self._needed()
        loaded = self._model.load_weights(self._pairs(weights))
        if loaded is None:
            log.info("this model does not say which parameters it loaded: only the version's names were checked")
        elif lacking := sorted(needed - loaded):
            raise ValueError(f"it has nothing for {len(lacking)} of the model's parameters: {named(lacking)}")
        if self._in_doubt and (partial := _partial(self._model)):
            raise ValueError(f"it has only a part of {len(partial)} of the model's layers: {named(partial)}")
        layerwise.finalize_layerwise_reload(self._model, self._config.model_config)
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()  # before the files may go
        if self._filled is None and loaded is not None:
            self._filled = set(loaded)

    def _pairs(self, weights: Source) -> Iterator[tuple[str, Any]]:
        """Views of the mapped files, of which a rank touches what its part of the model is copied from, and nothing else; or of the
        GPUs' memory."""
        for name in weights:
            self._at = name
            yield name, weights[name]
        self._at = ""

    def _needed(self) -> set[str]:
        """Parameters that a version has to fill, of a model in the form in which it is loaded."""
        if self._config.model_config.quantization is None or not self._served:
            return needed_parameters(self._model, bool(self._config.lora_config))
        return self._filled or set()  # which ones a quantization makes itself, only its loader knows

    def _took(self, fresh: Served) -> None:
        model_config = self._config.model_config
        self._served, self._broken = fresh, None
        if fresh.path is None:  # it was sent, and is nowhere else
            self._path = model_config.model
            return
        # As vLLM's reload_weights has it: a reload without a path is one of this version.
        self._path = model_config.model = fresh.path
        model_config.model_weights, model_config.revision = "", None

    def _back(self) -> str:
        """After a load that failed on some rank. What is served now, in words."""
        error = self.ranks.agree(self._try_back())
        if error is None:
            assert self._served is not None
            return f"{self._served.name} was loaded again and is served"
        self._broken = f"{error}: load a complete version, or restart, before it is resumed"
        return f"What is in memory now is no version: {self._broken}"

    def _try_back(self) -> Optional[str]:
        served = self._served
        try:
            _undo(self._model)  # whatever follows: a request that finds half a layer kills vLLM
            if served is None or served.path is None:
                return "it is not known where the version before is" if served else "it is not known which version that was before"
            with open(served.path, "torch") as weights:
                difference = Difference.between(weights.layout(), served.layout)
                self._in_doubt = False
                return f"{served.name} is another one now: {difference}" if difference else self._try(weights, served.name)
        except Exception as e:
            return f"{served.name if served else 'the model'} cannot be loaded again: {_sentence(e)}"


def _sentence(e: Exception) -> str:
    return f"{type(e).__name__}: {e}" if str(e) else type(e).__name__


def _folder(model: str, config: Any) -> str:
    """Where the files of a model are: of a folder itself, or in the cache of a hub's."""
    if os.path.isdir(model):
        return model
    from huggingface_hub import snapshot_download

    return snapshot_download(model, revision=config.model_config.revision, cache_dir=config.load_config.download_dir, local_files_only=True)


def needed_parameters(model: Any, has_lora: bool = False) -> set[str]:
    """All but those that vLLM's own check (of quantized models) lets a checkpoint do without: empty ones, those of layers that
    quantize by themselves, scales of the cache."""
    needed = {name for name, p in model.named_parameters() if p.numel() and name.rpartition(".")[2] not in _NOT_OF_CHECKPOINTS}
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "uses_meta_device", False) or any(c.__name__ == "BaseKVCacheMethod" for c in type(method).__mro__):
            needed -= {f"{name}.{p}" if name else p for p, _ in module.named_parameters()}
    return {name.replace(".base_layer.", ".") for name in needed} if has_lora else needed


def _undo(model: Any) -> None:
    """Gives every layer that a load has begun and not ended its tensors back; they may be those of either version."""
    from vllm.model_executor.model_loader.reload import layerwise

    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and info.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, info)
            info.reset()


def _partial(model: Any) -> list[str]:
    """Layers that a load has filled in part, such as fused ones of which a third is missing. Layers with padding look the same:
    of those only the vocabulary's, which has it in every model, is known here."""
    from vllm.model_executor.model_loader.reload import layerwise

    found = []
    for name, layer in model.named_modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and 0 < info.load_numel < info.load_numel_total and not hasattr(layer, "num_embeddings_padded"):
            found.append(name)
    return found


def _begun(model: Any) -> bool:
    """Has a load begun that has not ended?"""
    from vllm.model_executor.model_loader.reload import layerwise

    return any(layerwise.get_layerwise_info(layer).can_load() for layer in model.modules())


_loaders: "WeakKeyDictionary[Any, Loader]" = WeakKeyDictionary()


def loader_of(model: Any, vllm_config: Any, start: Optional[Start] = None) -> Loader:
    """The back end's and the extension's are the same. start: what the worker was started with, where that was looked at."""
    found = _loaders.get(model)
    if found is None:
        found = _loaders[model] = Loader(model, vllm_config, start)
    return found
