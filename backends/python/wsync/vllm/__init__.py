"""vLLM's side: a weight-transfer back end named ``wsync`` and a worker extension, both of which load a mount's path and check
what vLLM does not: that a version is complete.

    vllm serve /wsync/actor/1 --weight-transfer-config '{"backend": "wsync"}'
    vllm serve /wsync/actor/1 --worker-extension-cls wsync.vllm.Extension

Installing the package is enough: vLLM finds ``register`` by its plug-in entry point. Importing this imports no vLLM."""
from __future__ import annotations

import logging

from ._extension import Extension

__all__ = ["Extension", "register"]

BACKEND = "wsync"


def register() -> None:
    """Tells vLLM of the back end. vLLM calls it in each of its processes, maybe twice, and would not start if it raised."""
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
