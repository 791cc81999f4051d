"""What a watched load says of a model: which memory holds which elements, and what has to be loaded by the engine's own loader."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ._recorder import Recorder
from ._regions import Region, merged


class Unpatchable(Exception):
    """A version cannot be patched in; the message says why. Nothing was written."""


@dataclass
class Place:
    """One storage of the model: the module and the name of a tensor that has it, and its regions."""

    module: Any
    attribute: str
    name: str
    tensor: Any
    regions: list[Region]

    def __post_init__(self) -> None:
        self._at, self._shape, self._dtype = self.tensor.data_ptr(), tuple(self.tensor.shape), self.tensor.dtype
        self._bytes = self.tensor.untyped_storage().nbytes()

    @property
    def is_where_it_was(self) -> bool:
        """Whether the module still has this memory, in this shape."""
        now = getattr(self.module, self.attribute, None)
        return (now is not None and now.data_ptr() == self._at and tuple(now.shape) == self._shape and now.dtype == self._dtype
                and now.untyped_storage().nbytes() == self._bytes)


class Recording:
    """places: what can be patched. whole: tensors that the engine's loader must load, and why. modules: by tensor, those whose memory it is
    in; a tensor in none, and not copied anywhere, is not this rank's."""

    def __init__(self, recorder: Recorder, model: Any):
        self.places: list[Place] = []
        self.modules = recorder.modules
        self.dtypes, self._elements = dict(recorder.dtypes), dict(recorder.elements)
        self.whole: dict[str, str] = {name: ", ".join(sorted(why)) for name, why in recorder.reasons.items()}
        placed: set[str] = set()
        for module, attribute, name, tensor in _distinct(model):
            regions, tainted = recorder.regions(tensor)
            for one in tainted:
                self.whole.setdefault(one, f"{name} is computed from it")
            if regions:
                self.places.append(Place(module, attribute, name, tensor.detach(), merged(iter(regions))))
                placed |= {one.name for one in regions}
        for place in self.places:
            for one in place.regions:
                if one.to.item != self.dtypes[one.name].itemsize or any(s <= 0 or s % one.to.item for s in one.source_strides):
                    self.whole.setdefault(one.name, f"{place.name} has it in another form")
        for name in set(self.modules) - placed:
            self.whole.setdefault(name, "no parameter has it")
        self._join_modules()

    def _join_modules(self) -> None:
        """A module is loaded with all of its tensors."""
        members: dict[str, set[str]] = {}
        for name, modules in self.modules.items():
            for module in modules:
                members.setdefault(module, set()).add(name)
        waiting = list(self.whole)
        while waiting:
            for module in self.modules.get(waiting.pop(), ()):
                for name in members[module] - set(self.whole):
                    self.whole[name] = f"module {module} is loaded whole"
                    waiting.append(name)

    def loses(self, names: Iterable[str], why: str) -> None:
        """A proof has failed for these tensors."""
        for name in names:
            self.whole.setdefault(name, why)
        self._join_modules()

    def regions(self) -> Iterator[tuple[Place, Region]]:
        """All that can be patched."""
        for place in self.places:
            for one in place.regions:
                if one.name not in self.whole:
                    yield place, one

    @property
    def patchable(self) -> float:
        """The share of this rank's elements that can be patched, of those that were loaded from files."""
        patched = sum(one.to.elements for _, one in self.regions())
        rest = sum(self.elements(name) for name in self.whole)
        return patched / (patched + rest) if patched else 0.0

    def elements(self, name: str) -> int:
        """Of a tensor of the checkpoint."""
        return self._elements.get(name, 0)

    def whole_modules(self, names: Iterable[str]) -> list[str]:
        """Modules to be loaded whole if these tensors change. Unpatchable: one that is in no module."""
        found: set[str] = set()
        for name in names:
            modules = self.modules.get(name)
            if not modules:
                raise Unpatchable(f"{name} is in no module that could be loaded alone ({self.whole.get(name)})")
            found |= modules
        return sorted(found)

    def all_whole_modules(self) -> list[str]:
        return sorted(set().union(*(self.modules.get(name, ()) for name in self.whole)))

    def tensors_of(self, modules: Iterable[str]) -> set[str]:
        wanted = set(modules)
        return {name for name, of in self.modules.items() if of & wanted}

    def moved(self) -> list[str]:
        return [place.name for place in self.places if not place.is_where_it_was]


def _distinct(model: Any) -> Iterator[tuple[Any, str, str, Any]]:
    """(module, attribute, full name, tensor) of each storage once."""
    seen = set()
    for path, module in model.named_modules():
        for attribute, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if tensor.device.type == "meta" or not tensor.numel():
                continue
            key = tensor.untyped_storage()._cdata
            if key not in seen:
                seen.add(key)
                yield module, attribute, f"{path}.{attribute}".lstrip("."), tensor
