"""Stands in for SGLang's kernel package, which does not load without libcuda. Every name that is asked for
exists, below every module name, and raises when it is called: with SGLANG_USE_CPU_ENGINE=1 SGLang imports the
kernels and then computes with torch. Its server, scheduler and loader are the real ones. Its adapters ask for pinned memory, which wants a
driver: they get memory that is not pinned."""
import importlib.abc
import importlib.machinery
import sys
import types

import torch

__version__ = "0.4.10"


class Missing:
    def __init__(self, name):
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self.__name__}.{name}")

    def __call__(self, *_args, **_kw):
        raise NotImplementedError(f"{self.__name__} is a stand-in: this machine has no GPU")


def names_of(module):
    def get(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{module}.{name}")

    return get


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below sgl_kernel."""

    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("sgl_kernel.") else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = names_of(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
__getattr__ = names_of(__name__)


def copy_all_layer_kv_cache_cpu(*_):
    """A start with a draft model calls it once, to warm it up. Nothing else may: it copies nothing."""


# A draft model's attention looks them up at a start. They are there and compute nothing.
operators = torch.library.Library("sgl_kernel", "DEF")
for name in ("decode_attention_cpu", "extend_attention_cpu"):
    operators.define(f"{name}() -> ()")


def unpinned(make):
    def make_unpinned(*args, pin_memory=False, **kw):
        return make(*args, **kw)

    return make_unpinned


if not torch.cuda.is_available():
    for name in ("tensor", "zeros", "ones", "empty", "full", "arange", "zeros_like", "empty_like"):
        setattr(torch, name, unpinned(getattr(torch, name)))
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
