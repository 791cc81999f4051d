"""What a watched load says of a model: which memory holds which elements, and what has to be loaded by the engine's own loader."""
from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ._recorder import Recorder
from ._regions import Region, merged


class Unpatchable(Exception):
    """A version cannot be patched in; the message says why. Nothing was written."""


@dataclass
class Place:
    """One storage of the model: the module and the name of a tensor that has it, and its regions. ties: others that have it."""

    module: Any
    attribute: str
    name: str
    tensor: Any
    regions: list[Region]
    ties: list[tuple[Any, str]]

    def __post_init__(self) -> None:
        self._at, self._shape, self._dtype = self.tensor.data_ptr(), tuple(self.tensor.shape), self.tensor.dtype
        self._bytes = self.tensor.untyped_storage().nbytes()

    @property
    def is_where_it_was(self) -> bool:
        """Whether the module still has this memory, in this shape, and those that are tied to it have it, too."""
        storage = self.tensor.untyped_storage()._cdata
        for module, attribute in self.ties:
            tied = getattr(module, attribute, None)
            if tied is None or tied.untyped_storage()._cdata != storage:
                return False
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
        unfilled: list[str] = []  # parameters, by nothing that was seen
        storages = _storages(model)
        for (module, attribute, name, tensor), *tied in storages.values():
            regions, tainted = recorder.regions(tensor)
            for one in tainted:
                self.whole.setdefault(one, f"{name} is computed from it")
            for one in recorder.files_in(tensor):
                self.whole.setdefault(one, f"{name} is the loader's own tensor")
            if not regions and not tainted and attribute in module._parameters:
                unfilled.append(name)
            if regions:
                ties = [(of, named) for of, named, _, _ in tied]
                self.places.append(Place(module, attribute, name, tensor.detach(), merged(iter(regions)), ties))
                placed |= {one.name for one in regions}
        for place in self.places:
            for one in place.regions:
                if one.to.item != self.dtypes[one.name].itemsize or any(s <= 0 or s % one.to.item for s in one.source_strides):
                    self.whole.setdefault(one.name, f"{place.name} has it in another form")
        for name in set(self.modules) - placed:
            self.whole.setdefault(name, "no parameter has it")
        if recorder.kept_elsewhere(set(storages)):
            gc.collect()  # else what only waits for it looks kept
        for name in recorder.kept_elsewhere(set(storages)):
            self.whole.setdefault(name, "a copy of it is kept beside the parameters")
        for name in set(self.dtypes) - placed - set(self.whole) if unfilled else ():
            self.whole[name] = f"it was not seen where it went, nor what filled {unfilled[0]}"
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


def _storages(model: Any) -> dict[int, list[tuple[Any, str, str, Any]]]:
    """(module, attribute, full name, tensor) of all that have a storage, for each."""
    found: dict[int, list[tuple[Any, str, str, Any]]] = {}
    for path, module in model.named_modules():
        for attribute, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if tensor.device.type != "meta" and tensor.numel():
                found.setdefault(tensor.untyped_storage()._cdata, []).append((module, attribute, f"{path}.{attribute}".lstrip("."), tensor))
    return found
