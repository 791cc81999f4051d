"""Ray over wsync: actors that publish weights and actors that receive them, on any nodes::

    @ray.remote
    class Trainer(wsync.ray.Publishes):
        def sync(self):
            return self.publish(self.model.state_dict().items())

    @ray.remote
    class Rollout(wsync.ray.Receives):
        def load(self, told):
            self.model.load_weights(self.receive(told))

    told = [trainer.sync.remote() for trainer in trainers][0]
    ray.get([rollout.load.remote(told) for rollout in rollouts])

Only what says which version it is goes through Ray. An actor that fails to publish fails the loads that were given its reference, by
Ray itself. The mixins have no constructor, and open what they need at the first call; importing this does not import Ray."""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Optional, Union

from ._handover import ARRIVAL_SECONDS, Receiver, Sender, told_of
from .publish import _ranks
from .publish._held import Source
from .publish._publisher import Publisher


class Publishes:
    """A mixin for actors of trainers. publish_options, of the class or the object: model ("actor"), and wsync.Publisher's."""

    publish_options: dict[str, Any] = {}
    _wsync_sender: Union[Sender, Shards, None] = None

    def publish(self, weights: Union[Source, Iterable[tuple[str, Any]]]) -> Optional[dict[str, Any]]:
        """Publishes the next version of a lineage of this actor's own. Collective over the ranks of torch.distributed, where that is
        initialized. Returns, on rank 0, what receivers are to be told, once they can have the version; None on the others. Then the
        weights may change.

        weights: a wsync.Source (``wsync.fsdp(model)``, ``wsync.deepspeed(engine)``), of which each rank writes what it holds, and which
        is the same at each call; or an iterable of (name, tensor), which all ranks gather together: rank 0 writes, and all ranks take all
        of it, also after an error. wsync.Error, and what Publisher raises; the version's number is then skipped on all ranks."""
        if self._wsync_sender is None:
            options = {"model": "actor", **self.publish_options}
            self._wsync_sender = Shards(source=weights, **options) if isinstance(weights, Source) else Sender(**options)
        sender = self._wsync_sender
        if isinstance(sender, Shards):
            return sender.send()
        if _ranks.rank() != 0:
            for _ in weights:  # they gather together
                pass
            return None
        told = sender.announce()
        sender.send(weights)
        return told

    def close_publisher(self) -> None:
        """What was published stays served. An actor that Ray ends without killing it does this by itself."""
        sender, self._wsync_sender = self._wsync_sender, None
        if sender is not None:
            sender.close()


class Receives:
    """A mixin for actors that read what others publish. receive_options, of the class or the object: source and path, ``wsync.mount``'s,
    which find the trainer's agent from another node ("http://TRAINER:18861"). Without source it is $WSYNC_SOURCE, else what is mounted at path,
    and on the trainer's node its agent."""

    receive_options: dict[str, Any] = {}
    _wsync_receiver: Optional[Receiver] = None

    def receive(self, told: dict[str, Any], timeout: float = ARRIVAL_SECONDS) -> Iterator[tuple[str, Any]]:
        """Yields (name, tensor) of the version that ``publish`` told of. Tensors are views of this node's memory, of which all actors share one
        copy, and stay valid; one that is written to is copied first. Timeout: it has not arrived within so many seconds."""
        return self._wsync_received().receive(told, timeout)

    def folder(self, told: dict[str, Any], timeout: float = ARRIVAL_SECONDS) -> str:
        """The version's path on this node, for an engine that loads one. Timeout. wsync.Error: nothing can be mounted here."""
        return self._wsync_received().folder(told, timeout)

    def _wsync_received(self) -> Receiver:
        if self._wsync_receiver is None:
            self._wsync_receiver = Receiver(**self.receive_options)
        return self._wsync_receiver

    def close_receiver(self) -> None:
        """Lets go of the node's mount, which its last user ends. An actor that Ray ends without killing it does this by itself; what a killed
        one leaves goes with the next one's."""
        receiver, self._wsync_receiver = self._wsync_receiver, None
        if receiver is not None:
            receiver.close()


class Shards:
    """Of all ranks, each of which writes what its source holds."""

    def __init__(self, model: str, source: Source, **options: Any):
        self._pub = Publisher(model, source, new_run=True, **options)
        self._version = 0

    def send(self) -> Optional[dict[str, Any]]:
        self._version += 1  # on all ranks, whatever fails
        self._pub.offload(self._version)
        if self._pub.rank != 0:
            return None
        self._pub.wait_published(self._version)
        return told_of(self._pub.model, self._version, self._pub.run, self._pub._agent)

    def close(self) -> None:
        self._pub.close()
