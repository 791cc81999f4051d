"""The vLLM plug-in: a weight-transfer back end named ``wsync`` and a worker extension. Both load a version from a mount's path and
check that it is complete, which vLLM does not.

    vllm serve /wsync/actor/1 --weight-transfer-config '{"backend": "wsync"}'
    vllm serve /wsync/actor/1 --worker-extension-cls wsync.vllm.Extension

Installing the package is enough: vLLM finds ``register`` by its plug-in entry point. Importing this module does not import vLLM."""
from __future__ import annotations

import logging

from ._extension import Extension

__all__ = ["Extension", "register"]

BACKEND = "wsync"


def register() -> None:
    """Registers the back end. vLLM calls it in each of its processes, maybe twice; it must not raise, or vLLM would not start."""
    log = logging.getLogger("vllm.wsync")
    try:
        from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    except ImportError as e:
        log.info("this vLLM has no weight transfer, so there is no back end %s: %s", BACKEND, e)
        return
    try:
        WeightTransferEngineFactory.register_engine(BACKEND, "wsync.vllm._backend", "Backend")
    except ValueError:
        log.debug("the weight-transfer back end %s is registered already", BACKEND)
