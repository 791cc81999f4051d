"""OpenRLHF over wsync, by one word: ``python -m wsync.openrlhf`` in the place of ``python -m openrlhf.cli.train_ppo_ray``, with the same arguments.

At each sync the actor's ranks write what ZeRO has them hold into their nodes' agents, without a gather, and each vLLM loads the version from
its node's mount: whole and checked, or not at all. OpenRLHF pauses, wakes and resumes its engines as before; there is no group of NCCL between
the two sides. This package is installed where Ray's workers are. $WSYNC_MODEL is the model (actor). Where vLLM is on other nodes, $WSYNC_SOURCE
says where the trainer's agent is (http://TRAINER:18861) and $WSYNC_MOUNT where to mount it (/wsync), as for wsync.mount.

Ray's processes import this module for the two classes of actors that are replaced. It imports OpenRLHF's modules when they are asked for, as those
of the trainer import DeepSpeed, which is not for vLLM's processes."""
from __future__ import annotations

import asyncio
import os
import sys
from typing import Any, Optional

from .publish import _ranks
from .publish._deepspeed import deepspeed
from .ray import Publishes, Receives

CLI = "openrlhf.cli.train_ppo_ray"


class _Trainer(Publishes):
    """In the place of ActorPPOTrainer, in each rank of the actor."""

    def __init__(self, strategy: Any, *args: Any, **kwargs: Any):
        folder = strategy.args.actor.model_name_or_path
        self.publish_options = {"model": os.environ.get("WSYNC_MODEL") or "actor", "hf_config": folder if os.path.isdir(folder) else None}
        super().__init__(strategy, *args, **kwargs)

    def _init_vllm_sync_group(self, backend: str) -> None:
        """There is none."""

    def broadcast_to_vllm(self) -> None:
        """Collective. Returns when all engines serve the actor's weights; an error on one rank is one on all."""
        error: Optional[Exception] = None
        try:
            told = self.publish(deepspeed(self.actor.model))  # type: ignore[attr-defined]
            if told is not None:
                import ray

                ray.get([engine.load_version.remote(told) for engine in self.vllm_engines])  # type: ignore[attr-defined]
        except Exception as e:  # the other ranks wait
            error = e
        said = _ranks.all_gather(None if error is None else f"rank {_ranks.rank()}: {error}")
        if error is not None:
            raise error
        if any(said):
            raise RuntimeError(f"the engines have not loaded the actor's weights: {next(filter(None, said))}")


class _Rollout(Receives):
    """In the place of RolloutRayActor."""

    async def __init__(self, *args: Any, **kwargs: Any):
        kwargs["worker_extension_cls"] = "wsync.vllm.Extension"
        await super().__init__(*args, **kwargs)  # type: ignore[misc]

    async def load_version(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        """Loads what ``publish`` told of, and returns what each worker serves then. A version that is not whole is refused, and what was served
        is kept."""
        path = await asyncio.to_thread(self.folder, told)
        served = await self.llm.collective_rpc("wsync_load", kwargs={"path": path})  # type: ignore[attr-defined]
        await self.reset_prefix_cache()  # type: ignore[attr-defined]
        return served

    async def serving(self) -> list[dict[str, Any]]:
        """What each worker serves: wsync_serving's, wsync-engines(7)."""
        return await self.llm.collective_rpc("wsync_serving")  # type: ignore[attr-defined]


def _decorated(actor_class: Any) -> type:
    """The class that ray.remote was given."""
    return actor_class.__ray_metadata__.modified_class.__ray_actor_class__


def __getattr__(name: str) -> Any:
    """The classes of actors, by which Ray's processes know them."""
    if name == "Policy":
        from openrlhf.trainer.ray import ppo_actor

        ppo_actor.ActorPPOTrainer = type("Trainer", (_Trainer, ppo_actor.ActorPPOTrainer), {"__module__": __name__})
        made: Any = type(name, (_decorated(ppo_actor.PolicyModelActor),), {"__module__": __name__})
    elif name == "Rollout":
        from openrlhf.trainer.ray import vllm_engine

        made = type(name, (_Rollout, _decorated(vllm_engine.RolloutRayActor)), {"__module__": __name__})
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made
    return made


def install() -> None:
    """Has OpenRLHF make these actors in the place of its own, in this process, which starts the others. Once."""
    import ray
    from openrlhf.trainer.ray import ppo_actor, vllm_engine

    own = sys.modules[__name__]
    policy, rollout = own.Policy, own.Rollout  # type: ignore[attr-defined]
    ppo_actor.PolicyModelActor = ray.remote(num_gpus=1)(policy)
    vllm_engine.RolloutRayActor = ray.remote(rollout)


def main() -> None:
    """OpenRLHF's command line."""
    import runpy

    install()
    runpy.run_module(CLI, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    import importlib

    importlib.import_module("wsync.openrlhf").main()  # the name by which Ray's processes know it
