"""SkyRL over wsync, by one line: ``trainer.override_entrypoint=wsync.skyrl``.

Weights then go from the policy's ranks into the agent's memory, and engines load them by path from their nodes' mounts. Mounts are at
$WSYNC_MOUNT (default /wsync), the model is $WSYNC_MODEL (default actor), the agent is wsync.Publisher's. Every vLLM server needs this package
installed: SkyRL starts it with the weight-transfer back end ``wsync``.

Ray's processes import this module, and are patched by that, since the classes that they are given are defined in it. Not for
colocate_all. Adapters that are not merged go SkyRL's own way."""
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from skyrl.backends.skyrl_train import weight_sync
from skyrl.backends.skyrl_train.weight_sync.transfer_strategy import WeightSyncInitInfo, WeightTransferSender, WeightTransferStrategy
from skyrl.backends.skyrl_train.weight_sync.weight_extractor import WeightExtractor

from .publish import _ranks
from .publish._held import Tensors, detached
from .publish._publisher import Publisher

BACKEND = "wsync"
UTILS = "skyrl.backends.skyrl_train.inference_servers.utils"
ARRIVAL_SECONDS = 300.0
_own_strategy, _own_strategy_cls = weight_sync.get_transfer_strategy, weight_sync.get_transfer_strategy_cls


@dataclasses.dataclass
class InitInfo(WeightSyncInitInfo):
    """root: the model's folder on the engines' mounts. pauses: SkyRL leaves it to the sender to pause the engines."""

    root: str
    model: str
    pauses: bool

    def for_servers(self, world_size_per_server: int, num_servers: int, dp_size: int = 1) -> list[InitInfo]:
        return [dataclasses.replace(self) for _ in range(num_servers)]

    def to_api_payload(self) -> dict[str, Any]:
        return {}  # the root is no folder before there is a version


class Sender(WeightTransferSender):
    """All ranks publish a version; rank 0 has the mounts fetch it while the engines generate, where SkyRL can (fetch_weights), then has the
    engines load it in the pause."""

    handles_prefix_cache_reset = True

    def __init__(self, init_info: InitInfo, inference_client: Any) -> None:
        self._init_info, self._client = init_info, inference_client
        self._pub: Optional[Publisher] = None
        self._sharded: Optional[bool] = None
        self._named: dict[str, Any] = {}
        self._version = 0

    async def send_chunks(self, chunks: Iterable[Any], weight_metadata: Optional[dict[str, list]] = None, reset_prefix_cache: bool = False, **_: Any) -> None:
        """Collective. All of chunks is taken on all ranks, except if they are an Extractor's and each rank has an agent to write its shards to."""
        error: Optional[Exception] = None
        try:
            await asyncio.to_thread(self._publish, chunks, weight_metadata)
            if _ranks.rank() == 0:
                await self._load(f"{self._init_info.root}/{self._version}@{self._pub.run}", reset_prefix_cache)  # type: ignore[union-attr]
        except Exception as e:  # the other ranks wait
            error = e
        said = await asyncio.to_thread(_ranks.all_gather, None if error is None else f"rank {_ranks.rank()}: {error}")
        if error is not None:
            raise error
        if any(said):
            raise RuntimeError(f"version {self._version} was not loaded: {next(filter(None, said))}")

    def _publish(self, chunks: Iterable[Any], weight_metadata: Optional[dict[str, list]]) -> None:
        self._version += 1  # on all ranks, whatever fails
        if self._sharded is None:
            self._sharded = all(_ranks.all_gather(isinstance(chunks, Chunks) and _ranks.on_node_of_rank_0()))
        if self._sharded:
            self._named = chunks.shards()  # type: ignore[attr-defined]
            try:
                self._opened(dtype=chunks.dtype).offload(self._version)  # type: ignore[attr-defined]
            finally:
                self._named = {}
        else:
            pairs = _pairs(chunks)
            try:
                if _ranks.rank() == 0:
                    self._offload_gathered(pairs, weight_metadata)
            finally:
                for _ in pairs:  # the others wait in it
                    pass
        if _ranks.rank() == 0:
            self._pub.wait_published(self._version)  # type: ignore[union-attr]

    def _opened(self, **options: Any) -> Publisher:
        if self._pub is None:
            self._pub = Publisher(self._init_info.model, Tensors(lambda: self._named), new_run=True, **options)
        return self._pub

    def _offload_gathered(self, pairs: Iterable[tuple], weight_metadata: Optional[dict[str, list]]) -> None:
        if weight_metadata is None:
            raise ValueError("weight_metadata is needed: names, dtype_names and shapes of all weights")
        layout = list(zip(weight_metadata["names"], weight_metadata["dtype_names"], weight_metadata["shapes"]))
        self._opened(rank=0, world_size=1).offload_stream(self._version, layout, pairs)

    async def _load(self, path: str, reset_prefix_cache: bool) -> None:
        client = self._client
        if hasattr(client, "fetch_weights"):
            await client.fetch_weights(target_version=self._version, sync_dir=self._init_info.root, uri=path)
        if self._init_info.pauses:
            await client.pause_generation()
        try:
            if reset_prefix_cache:
                await client.reset_prefix_cache(reset_running_requests=True)
            # vLLM's own routes: SkyRL's start would take the layers apart, which our back end does by itself.
            await client._call_all_servers("/start_weight_update", {})
            try:
                await client.update_named_weights({"weights_path": path, "wait": ARRIVAL_SECONDS})
            except BaseException:
                with contextlib.suppress(Exception):  # ends the session of servers that have loaded it
                    await client._call_all_servers("/finish_weight_update", {})
                raise
            await client._call_all_servers("/finish_weight_update", {"weight_version": str(self._version)})
        finally:
            if self._init_info.pauses:
                await client.resume_generation()

    def teardown(self) -> None:
        pub, self._pub, self._sharded = self._pub, None, None
        if pub is not None:
            pub.close()


class Strategy(WeightTransferStrategy):
    @staticmethod
    def create_init_info(ie_cfg: Any, inference_world_size: Optional[int] = None, base_model_path: Optional[str] = None) -> InitInfo:
        mount, model = os.environ.get("WSYNC_MOUNT") or "/wsync", os.environ.get("WSYNC_MODEL") or "actor"
        return InitInfo(override_existing_receiver=not ie_cfg.run_engines_locally, root=f"{mount.rstrip('/')}/{model}", model=model,
                        pauses=ie_cfg.weight_sync_backend == "delta")

    @staticmethod
    def get_vllm_transfer_engine() -> type:
        from .vllm._backend import Backend

        return Backend

    @staticmethod
    def create_sender(init_info: InitInfo, inference_client: Any) -> Sender:
        return Sender(init_info, inference_client)


class Extractor(WeightExtractor):
    """SkyRL's FSDPWeightExtractor, of whose chunks a Sender takes the shards, without a gather."""

    def __init__(self, own: Any):
        self._own = own

    def extract_weights(self, dtype: Any) -> Chunks:
        return Chunks(self._own, dtype)

    def get_weight_metadata(self, dtype: Any) -> dict[str, list]:
        return self._own.get_weight_metadata(dtype)


class Chunks:
    """Iterating it gathers, as SkyRL's extractor does."""

    def __init__(self, own: Any, dtype: Any):
        self._own, self.dtype = own, dtype

    def __iter__(self) -> Iterator[Any]:
        return iter(self._own.extract_weights(self.dtype))

    def shards(self) -> dict[str, Any]:
        """What this rank holds, in the names of the chunks."""
        prefix = getattr(self._own, "weight_prefix", "")
        return {prefix + name: detached(tensor) for name, tensor in self._own.model.state_dict().items()}


def _pairs(chunks: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for chunk in chunks:
        yield from zip(chunk.names, chunk.tensors)


# --- the entry point, and what it replaces in Ray's processes ---


def get_transfer_strategy(weight_sync_backend: str, colocate_all: bool) -> str:
    """In the place of SkyRL's: the name of vLLM's back end."""
    return _own_strategy(weight_sync_backend, colocate_all) if colocate_all else BACKEND


def get_transfer_strategy_cls(weight_sync_backend: str, colocate_all: bool) -> type:
    """In the place of SkyRL's."""
    return _own_strategy_cls(weight_sync_backend, colocate_all) if colocate_all else Strategy


def install() -> None:
    """Has SkyRL choose wsync, in this process. Importing this module does it."""
    weight_sync.get_transfer_strategy, weight_sync.get_transfer_strategy_cls = get_transfer_strategy, get_transfer_strategy_cls
    utils = sys.modules.get(UTILS)  # has its own name for it, once imported
    if utils is not None:
        utils.get_transfer_strategy = get_transfer_strategy


class _Policy:
    async def init_weight_sync_state(self, *args: Any, **kwargs: Any) -> None:
        await super().init_weight_sync_state(*args, **kwargs)  # type: ignore[misc]
        if getattr(self, "_transfer_strategy_cls", None) is Strategy and hasattr(self.weight_extractor, "model") and hasattr(self.weight_extractor.model, "state_dict"):
            self.weight_extractor = Extractor(self.weight_extractor)


def __getattr__(name: str) -> Any:
    """The workers and the experiment, made when SkyRL asks for them: their modules need CUDA's packages."""
    if name == "FSDPPolicy":
        from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase

        made: Any = type(name, (_Policy, FSDPPolicyWorkerBase), {"__module__": __name__})
    elif name == "Experiment":
        from skyrl.train.entrypoints.main_base import BasePPOExp

        made = type(name, (BasePPOExp,), {"__module__": __name__, "_setup_trainer": _setup_trainer})
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = made
    return made


def _setup_trainer(self: Any) -> Any:
    if self.cfg.trainer.strategy == "fsdp":
        import ray
        from skyrl.backends.skyrl_train.workers.fsdp import fsdp_worker

        fsdp_worker.PolicyWorker = ray.remote(num_gpus=1)(sys.modules[__name__].FSDPPolicy)
    from skyrl.train.entrypoints.main_base import BasePPOExp

    return BasePPOExp._setup_trainer(self)


def _run(cfg: Any) -> None:
    install()
    sys.modules[__name__].Experiment(cfg).run()


def configure(cfg: Any) -> Any:
    """Checks a configuration, and has releases of SkyRL that can fetch before the pause do so: they look for their own back end's name."""
    if cfg.trainer.placement.colocate_all:
        raise ValueError("wsync.skyrl is for engines apart from the trainer: leave out trainer.override_entrypoint, or set trainer.placement.colocate_all=false")
    from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient

    engine = cfg.generator.inference_engine
    if hasattr(RemoteInferenceClient, "fetch_weights") and cfg.trainer.policy.model.lora.rank == 0 and not getattr(engine, "offload_kv_for_weight_sync", False):
        engine.weight_sync_backend = "delta"
    return cfg


def main() -> None:
    """What SkyRL calls."""
    import importlib

    import ray
    from skyrl.train.config import SkyRLTrainConfig
    from skyrl.train.utils.utils import initialize_ray, validate_cfg

    cfg = SkyRLTrainConfig.from_cli_overrides(sys.argv[1:])
    validate_cfg(cfg)
    configure(cfg)
    initialize_ray(cfg)
    ray.get(ray.remote(num_cpus=1)(importlib.import_module(__name__)._run).remote(cfg))


install()
