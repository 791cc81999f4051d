"""Weights with the interface of vLLM's and SkyRL's WeightSource, so that their senders can send them."""
from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple, Optional


class ParamMeta(NamedTuple):
    """As vLLM's and SkyRL's ParamMeta: name; dtype (the framework's); shape (a tuple)."""

    name: str
    dtype: Any
    shape: tuple[int, ...]


class WeightSource:
    """vllm.distributed.weight_transfer.WeightSource (vLLM 0.30, SkyRL 0.4) over ``wsync.open(path, "torch")``.

    It is not the mapping itself, because a mapping iterates over names and a source over pairs. Tensors are views in host memory. A
    source may be iterated any number of times, each time by one thread. If vLLM is imported, isinstance(source, vLLM's
    WeightSource) is true."""

    def __init__(self, weights: Any):
        """weights: a mapping of names to tensors with metadata(), as Weights and GpuWeights are."""
        self.weights = weights
        _register()

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and full shape of each tensor, in the order of iteration; reads headers only."""
        return self.weights.metadata()

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yields (name, full tensor)."""
        for name in self.weights:
            yield name, self.weights[name]

    def __len__(self) -> int:
        return len(self.weights)

    def held_names(self) -> Optional[Collection[str]]:
        """None: this process holds every tensor."""
        return None

    def groups(self) -> list[list[str]]:
        """vLLM's partition of the names by layer. Only vLLM calls it; ImportError without vLLM."""
        from vllm.distributed.weight_transfer.base import layerwise_groups

        return layerwise_groups(list(self.weights))

    def iter_groups(self) -> Iterator[tuple[list[str], list[Any]]]:
        """Yields (names, tensors) of each group, whatever the order in the files."""
        for names in self.groups():
            yield names, [self.weights[name] for name in names]


def _register() -> None:
    """Registers the class with vLLM's WeightSource if vLLM has been imported; does not import it."""
    import sys

    base = sys.modules.get("vllm.distributed.weight_transfer.base")
    if base is not None and hasattr(base, "WeightSource"):
        base.WeightSource.register(WeightSource)
