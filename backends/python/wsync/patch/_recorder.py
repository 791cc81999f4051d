"""Watches a model's loader: which elements of which tensors it copies where.

Two modes of torch are needed. A dispatch mode sees each operation with the tensors' real memory; operations that are registered for no
dispatch key, and values that leave torch (item, numpy, data_ptr), pass it by and are seen by a function mode. What they read is not only
copied, so that its tensor cannot be patched by writing elements alone: the operation is kept as the reason. Kernels that are launched
without torch, and other threads, are seen by neither: that is what the proofs are for."""
from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Optional

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ._regions import Box, Moved, Region, box, region

_aten = torch.ops.aten
_COPIES = {_aten.clone.default, _aten._to_copy.default, _aten.contiguous.default}
#: they take a tensor for its shape and type
_EMPTY = {_aten.empty_like.default, _aten.zeros_like.default, _aten.ones_like.default, _aten.full_like.default, _aten.new_empty.default,
          _aten.new_zeros.default, _aten.new_ones.default, _aten.new_full.default, _aten.new_empty_strided.default}
_CONSTANTS = {_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default}
_LOOKS = {"numpy", "tolist", "item", "__dlpack__", "__array__", "data_ptr", "__bool__", "__float__", "__int__"}


def _key(tensor: Any) -> int:
    return tensor.untyped_storage()._cdata


class _Memory:
    """What is known of one storage."""

    def __init__(self, tensor: Any):
        self.alive = StorageWeakRef(tensor.untyped_storage())  # its address is not used for another storage meanwhile
        self.source: list[tuple[int, int, str]] = []  # a file's: from byte, to byte, tensor
        self.regions: list[Region] = []  # by their offsets: a layer's experts are thousands
        self._offsets: list[int] = []
        self._longest = 0
        self.tainted: set[str] = set()  # tensors from which some of it was computed

    def near(self, view: Optional[Box]) -> tuple[int, int]:
        """Which of the regions may meet the view."""
        if view is None:
            return 0, len(self.regions)
        return bisect.bisect_right(self._offsets, view.offset - self._longest), bisect.bisect_left(self._offsets, view.end)

    def replace(self, low: int, high: int, kept: list[Region], by: list[Region]) -> None:
        self.regions[low:high] = kept
        self._offsets[low:high] = [one.to.offset for one in kept]
        for one in by:
            at = bisect.bisect_left(self._offsets, one.to.offset)
            self.regions.insert(at, one)
            self._offsets.insert(at, one.to.offset)
            self._longest = max(self._longest, one.to.end - one.to.offset)


class Recorder:
    """Used as a context manager around the load; the loader's tensors come through `source`."""

    def __init__(self) -> None:
        self._memories: dict[int, _Memory] = {}
        self.reasons: dict[str, set[str]] = {}  # tensor: why it is not only copied
        self.dtypes: dict[str, Any] = {}
        self.elements: dict[str, int] = {}
        self.modules: dict[str, set[str]] = {}  # tensor: modules into whose memory it was copied
        self.failed: Optional[str] = None  # what in here was not foreseen: nothing is known then, and the load goes on
        self._owners: dict[int, tuple[str, Any]] = {}
        self._stack: Optional[contextlib.ExitStack] = None

    def __enter__(self) -> "Recorder":
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(_Functions(self))
        self._stack.enter_context(_Operations(self))
        return self

    def __exit__(self, *exc: Any) -> None:
        stack, self._stack = self._stack, None
        assert stack is not None
        stack.__exit__(*exc)

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Whatever goes wrong while something is noted, it is the recording that fails, and not the load."""
        try:
            yield
        except Exception as e:
            self.failed = self.failed or f"{type(e).__name__}: {e}"

    def own(self, model: Any) -> None:
        """Before the load: what the model's modules have."""
        with self.noting():
            self._own(model)

    def _own(self, model: Any) -> None:
        for name, module in model.named_modules():
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if _is_real(tensor):
                    self._owners.setdefault(_key(tensor), (name, StorageWeakRef(tensor.untyped_storage())))

    def source(self, name: str, tensor: Any) -> Any:
        """Notes a tensor of the checkpoint, and returns it."""
        with self.noting():
            memory = self._memory(tensor)
            start = tensor.storage_offset() * tensor.element_size()
            memory.source.append((start, start + tensor.numel() * tensor.element_size(), name))
            self.dtypes[name], self.elements[name] = tensor.dtype, tensor.numel()
        return tensor

    def sources(self, pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for name, tensor in pairs:
            yield name, self.source(name, tensor)

    def regions(self, tensor: Any) -> tuple[list[Region], set[str]]:
        """Of a tensor's storage: the regions, and the tensors from which something else of it was computed."""
        memory = self._memories.get(_key(tensor))
        return (memory.regions, memory.tainted) if memory else ([], set())

    def kept_elsewhere(self, model_has: set[int]) -> set[str]:
        """Tensors of which a copy is alive in a storage that is none of these."""
        return {one.name for key, memory in self._memories.items() if key not in model_has and not memory.alive.expired() for one in memory.regions}

    def files_in(self, tensor: Any) -> set[str]:
        """Tensors of the checkpoint that share their memory with this one."""
        memory = self._memories.get(_key(tensor))
        return {name for _, _, name in memory.source} if memory else set()

    # --- what the modes tell ---
    def _memory(self, tensor: Any) -> _Memory:
        found = self._memories.get(_key(tensor))
        if found is None:
            found = self._memories[_key(tensor)] = _Memory(tensor)
        return found

    def knows(self, tensor: Any) -> bool:
        return _is_real(tensor) and _key(tensor) in self._memories

    def names(self, tensor: Any) -> set[str]:
        """The checkpoint's tensors of which something may be in the view."""
        memory, view = self._memories[_key(tensor)], _box_of(tensor)
        if view is None and tensor.numel() == 0:
            return set()
        low, high = (view.offset, view.end) if view else (0, 1 << 62)
        found = {name for start, end, name in memory.source if start < high and low < end}
        found |= {one.name for one in memory.regions[slice(*memory.near(view))] if view is None or one.to.meets(view)}
        return found | memory.tainted

    def taint(self, names: Iterable[str], why: str) -> None:
        for name in names:
            self.reasons.setdefault(name, set()).add(why)

    def derived(self, tensor: Any, names: set[str], why: str) -> None:
        """Something was computed of these tensors, into this one."""
        self.taint(names, why)
        self.overwritten(tensor, [])
        if _is_real(tensor) and tensor.numel():
            self._memory(tensor).tainted |= names
            self._place(tensor, names)

    def overwritten(self, tensor: Any, by: list[Region]) -> None:
        """A view's elements were written: what was there is gone."""
        if not _is_real(tensor) or not tensor.numel():
            return
        memory, view = self._memory(tensor), _box_of(tensor)
        kept, (low, high) = [], memory.near(view)
        for one in memory.regions[low:high]:
            if view is not None and not one.to.meets(view):
                kept.append(one)
            elif view is None or not view.contains(one.to):
                self.taint([one.name], "partly overwritten")
        memory.replace(low, high, kept, by)
        self._place(tensor, (one.name for one in by))

    def _place(self, tensor: Any, names: Iterable[str]) -> None:
        owner = self._owners.get(_key(tensor))
        if owner is not None:
            for name in names:
                self.modules.setdefault(name, set()).add(owner[0])

    def copied(self, to: Any, source: Any, why: str) -> None:
        """All elements of source were copied to the other view."""
        if not _is_real(to) or not to.numel():
            return
        names = self.names(source)
        memory = self._memories[_key(source)]
        if to.dtype != source.dtype or memory.tainted:
            self.derived(to, names, why if memory.tainted else f"converted from {source.dtype} to {to.dtype}")
            return
        if source.shape != to.shape:
            source = source.expand(to.shape)
        regions = self._carried(to, source, memory)
        if regions is None:
            self.derived(to, names, f"{why} of a view that could not be followed")
        else:
            self.overwritten(to, regions)

    def _carried(self, to: Any, source: Any, memory: _Memory) -> Optional[list[Region]]:
        item = to.element_size()
        to_offset, to_strides = to.storage_offset() * item, [s * item for s in to.stride()]
        offset, strides = source.storage_offset() * item, [s * item for s in source.stride()]
        if memory.source:
            for start, end, name in memory.source:
                if start <= offset < end:
                    if self.dtypes[name].itemsize != item:
                        return None
                    one = region(to_offset, to_strides, to.shape, item, name, offset - start, strides)
                    return None if one is None else [one]
            return None
        return Moved(to.shape, offset, strides, to_offset, to_strides, item).carry(memory.regions)


def _is_real(tensor: Any) -> bool:
    """Whether it has memory that can be told by its address."""
    return tensor.device.type != "meta" and tensor.layout == torch.strided and not _is_wrapper(tensor)


def _is_wrapper(tensor: Any) -> bool:
    try:
        tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return True
    return False


def _box_of(tensor: Any) -> Optional[Box]:
    item = tensor.element_size()
    return box(tensor.storage_offset() * item, tensor.shape, [s * item for s in tensor.stride()], item)


def _tensors(*of: Any) -> list[Any]:
    return [one for one in tree_flatten(of)[0] if isinstance(one, torch.Tensor)]


class _Functions(TorchFunctionMode):
    """Sees functions before they are dispatched."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._recorder.failed is None:
            with self._recorder.noting():
                self._look(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _look(self, func: Any, args: Any, kwargs: Any) -> None:
        name = getattr(func, "__name__", "")
        custom = isinstance(func, (torch._ops.OpOverloadPacket, torch._ops.OpOverload)) and not str(func).startswith(("aten.", "prims."))
        if custom or name in _LOOKS:
            for tensor in _tensors(args, kwargs):
                if self._recorder.knows(tensor):
                    self._recorder.taint(self._recorder.names(tensor), f"read by {func if custom else name}")


class _Operations(TorchDispatchMode):
    """Sees operations with the memory that they read and write."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        recorder, kwargs, given = self._recorder, kwargs or {}, []
        if recorder.failed is None:
            with recorder.noting():
                given = _tensors(args, kwargs)
                given = given if any(recorder.knows(tensor) for tensor in given) else []
        made = func(*args, **kwargs)
        if given and recorder.failed is None:
            with recorder.noting():
                self._note(func, args, kwargs, given, made)
        return made

    def _note(self, func: Any, args: Any, kwargs: Any, given: list[Any], made: Any) -> None:
        why = f"read by {func}"
        if func is _aten.copy_.default:
            self._copied(args[0], args[1], why)
        elif func in _CONSTANTS:
            self._recorder.overwritten(args[0], [])
        elif func not in _EMPTY:
            self._computed(func, args, kwargs, given, made, why)

    def _copied(self, to: Any, source: Any, why: str) -> None:
        if self._recorder.knows(source):
            self._recorder.copied(to, source, why)
        else:
            self._recorder.overwritten(to, [])

    def _computed(self, func: Any, args: Any, kwargs: Any, given: list[Any], made: Any, why: str) -> None:
        recorder = self._recorder
        before = {_key(tensor) for tensor in given if _is_real(tensor)}
        results = _tensors(made)
        fresh = [tensor for tensor in results if not _is_real(tensor) or _key(tensor) not in before]
        written = [tensor for tensor, argument in zip(args, func._schema.arguments)
                   if isinstance(tensor, torch.Tensor) and argument.alias_info is not None and argument.alias_info.is_write]
        written += [kwargs[argument.name] for argument in func._schema.arguments
                    if argument.alias_info is not None and argument.alias_info.is_write and isinstance(kwargs.get(argument.name), torch.Tensor)]
        if results and not fresh and not written:
            return  # a view
        if func in _COPIES and len(fresh) == 1 and recorder.knows(args[0]):
            recorder.copied(fresh[0], args[0], why)
        elif func is _aten.cat.default and len(fresh) == 1:
            at, dim = 0, args[1] if len(args) > 1 else kwargs.get("dim", 0)
            for part in args[0]:
                if part.numel() and part.dim() == fresh[0].dim():
                    self._copied(fresh[0].narrow(dim, at, part.shape[dim]), part, why)
                    at += part.shape[dim]
        elif func is _aten.stack.default and len(fresh) == 1:
            for i, part in enumerate(args[0]):
                self._copied(fresh[0].select(args[1] if len(args) > 1 else kwargs.get("dim", 0), i), part, why)
        else:
            names = set().union(*(recorder.names(tensor) for tensor in given if recorder.knows(tensor)))
            recorder.taint(names, why)
            for tensor in fresh + written:
                recorder.derived(tensor, names, why)
