"""What must hold before anything is patched: memory is what the files say, and modules answer with it.

A recording can be wrong where a kernel or a thread passed the recorder by, and a module can answer with a copy that it made of its
parameter (packed for a kernel), which no comparison of parameters finds. So each region is compared with its file, and each linear
layer and embedding must answer otherwise while an element of its memory is another one."""
from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Optional

import torch

from ._recording import Place, Recording
from ._regions import Region

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SAMPLE, REGIONS = 64, 512
ROWS, COLUMNS = 16, 8  # of a region, where some of its elements are compared: a row of a file may cost a page that was not read yet
CHUNK = 32 << 20  # elements that are uploaded at once


def flat(tensor: Any, item: int) -> Any:
    """The tensor's whole storage as integers of this size."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=_INTEGERS[item], device=tensor.device).set_(storage, 0, (storage.nbytes() // item,), (1,))


def live(place: Place, one: Region) -> Any:
    """The region in memory, as integers, in its own shape."""
    item = one.to.item
    return flat(place.tensor, item).as_strided(one.to.shape, [s // item for s in one.to.strides], one.to.offset // item)


def of_file(tensor: Any, one: Region) -> Any:
    """The same elements of the file's tensor."""
    item = one.to.item
    whole = tensor.contiguous().view(-1).view(_INTEGERS[item])
    return whole.as_strided(one.to.shape, [s // item for s in one.source_strides], whole.storage_offset() + one.source // item)


def differing(recording: Recording, weights: Mapping[str, Any], sampled: bool = False) -> list[str]:
    """The tensors of which a patchable region is not what the version has, or of which the version has none. sampled: of some of the regions some
    elements, others each time."""
    regions = list(recording.regions())
    if sampled and len(regions) > REGIONS:
        regions = random.sample(regions, REGIONS)
    found = {}
    with torch.no_grad():
        for place, one in regions:
            if one.name not in found and (one.name not in weights or not _equal(live(place, one), of_file(weights[one.name], one), sampled)):
                found[one.name] = True
    return list(found)


def _equal(have: Any, want: Any, sampled: bool) -> bool:
    if sampled:
        some = _some(have.shape)
        have, want = have[some], want[some]
    if not have.dim() or have.device == want.device:
        return torch.equal(have, want.to(have.device))
    rows = max(1, CHUNK * have.shape[0] // have.numel())
    return all(torch.equal(a, b.to(have.device)) for a, b in zip(have.split(rows), want.split(rows)))


def _some(shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Some of the elements of this shape, spread over all axes, others each time."""
    keep = [(n, ROWS if axis == 0 else COLUMNS) for axis, n in enumerate(shape)]
    return tuple(slice(random.randrange(n // most), None, n // most) if n > most else slice(None) for n, most in keep)


def unheard(recording: Recording, model: Any) -> dict[str, str]:
    """Tensors of modules that answer as before when an element of their memory is another one, with the reason."""
    found = {}
    of_storage: dict[int, list[tuple[Place, Region]]] = {}
    for place, one in recording.regions():
        of_storage.setdefault(place.tensor.untyped_storage()._cdata, []).append((place, one))
    for name, module in model.named_modules():
        weight = getattr(module, "weight", None)
        if not isinstance(weight, torch.Tensor) or weight.device.type == "meta" or not weight.numel():
            continue
        for place, one in of_storage.get(weight.untyped_storage()._cdata, ()):
            why = _hears(module, weight, place, one)
            if why:
                found[one.name] = f"{name}: {why}"
    return found


def _ask(module: Any, weight: Any, row: int) -> Optional[Any]:
    """A call of the module that reads this row of its weight, and no other rank's. None: it is no linear layer and no embedding."""
    method = getattr(module, "quant_method", None)
    if method is None or weight.dim() != 2 or not weight.is_floating_point():
        return None
    if hasattr(module, "num_embeddings") and "Head" not in type(module).__name__:
        ids = torch.tensor([row], device=weight.device)
        return lambda: method.embedding(module, ids)
    width = getattr(module, "input_size_per_partition", None) or getattr(module, "embedding_dim", None)
    if width is None or not hasattr(method, "apply"):
        return None
    x = torch.ones((1, width), device=weight.device, dtype=getattr(module, "params_dtype", None) or weight.dtype)
    return lambda: method.apply(module, x, None)


def _hears(module: Any, weight: Any, place: Place, one: Region) -> Optional[str]:
    """None if the module's answer follows the region's memory; else why not."""
    elements = live(place, one).view(weight.dtype) if one.to.shape else live(place, one).view(1).view(weight.dtype)
    elements = elements[(0,) * (elements.dim() - 1)][:SAMPLE]
    try:
        with torch.no_grad():
            i = int(elements.float().abs().argmax())
            at = one.to.offset // one.to.item + i * elements.stride(0)
            ask = _ask(module, weight, at // weight.stride(0) if weight.is_contiguous() else 0)
            if ask is None:
                return None
            old = elements[i].clone()
            before = ask()
            elements[i] = old * -2 if old != 0 else torch.ones_like(old)
            try:
                during = ask()
            finally:
                elements[i] = old
            after = ask()
    except Exception as e:  # whatever a kernel says
        return f"it cannot be asked: {type(e).__name__}: {e}"
    if torch.equal(before, during):
        return "it answers with a copy of its memory"
    return None if torch.equal(before, after) else "it does not answer the same twice"
