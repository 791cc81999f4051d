"""NeMo-RL over wsync, where policy and vLLM are apart: ``policy.generation.refit_transport: "wsync.nemo_rl:Engine"``, with
``policy.generation.refit_cfg: {"wsync.nemo_rl:Engine": {}}``. For releases with nemo_rl/utils/checkpoint_engines, after 0.7.0.

Options are keys of that second one: model ("actor"); source and mount, where vLLM's nodes find the policy's agent and mount it (wsync.mount's
source and path; default: what is mounted at /wsync, and on the policy's node its agent); hf_config, whose small files are published along;
timeout (seconds until a version has arrived); device, on which vLLM's workers are given tensors (default: "cuda" where there is one)."""
from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, Optional

from ._handover import ARRIVAL_SECONDS, Receiver, Sender


class Engine:
    """NeMo-RL's CheckpointEngine, in every rank of the policy and every worker of vLLM. The policy's ranks gather as NeMo-RL has them gather, rank 0
    publishes, and each worker reads its node's mount. Which of the two it is it learns after ``prepare``. A refit that fails counts on both
    sides, so that the next one's versions agree."""

    shard_expert_weights = False

    def __init__(self, bucket_size: int, model: str = "actor", source: Optional[str] = None, mount: Optional[str] = None, hf_config: Optional[str] = None,
                 timeout: float = ARRIVAL_SECONDS, device: Optional[str] = None, release_after_refit: bool = False):
        self._sender, self._receiver = Sender(model, hf_config=hf_config), Receiver(source, mount)
        self._bucket_size, self._timeout, self._device = bucket_size, timeout, device
        self._sends = False
        self._told: Optional[dict[str, Any]] = None

    def get_target_weight_layout(self) -> None:
        """None: whole tensors are sent, and each worker takes its part."""

    def prepare(self) -> dict[str, Any]:
        """What each process would publish next; that of the policy's rank 0 counts."""
        return self._sender.coming()

    def init_policy_process_group(self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]) -> None:
        self._sends = worker_rank == 0
        if self._sends:
            self._sender.open()

    def init_rollout_process_group(self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]) -> None:
        self._told = metadata[0]

    async def send_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """On this thread, as the gather depends on its device and its torch.no_grad."""
        if self._sends:
            self._sender.announce()
            self._sender.send(weights)
        else:
            for _ in weights:  # they gather together
                pass

    async def receive_weight_batches(self) -> AsyncIterator[list[tuple[str, Any]]]:
        """Lists of (name, tensor), each of a bucket's size at most or of one tensor."""
        if self._told is None:
            raise RuntimeError("no version was announced: init_rollout_process_group comes first")
        told = self._told
        self._told = {**told, "version": told["version"] + 1}
        batch: list[tuple[str, Any]] = []
        size = 0
        for name, tensor in self._receiver.receive(told, self._timeout):
            if batch and size + tensor.nbytes > self._bucket_size:
                yield batch
                batch, size = [], 0
            batch.append((name, self._placed(tensor)))
            size += tensor.nbytes
        if batch:
            yield batch

    def _placed(self, tensor: Any) -> Any:
        if not hasattr(tensor, "to"):
            return tensor
        if self._device is None:
            import torch

            self._device = "cuda" if torch.cuda.is_available() else "cpu"
        return tensor.to(self._device)

    def finalize(self) -> None:
        """After a refit with release_after_refit, and at the end. Publisher and mount stay for the next one."""
        self._told = None

    def close(self) -> None:
        """At the process's exit that happens by itself."""
        self._receiver.close()
        self._sender.close()
