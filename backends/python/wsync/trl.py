"""TRL over wsync. Asynchronous trainers of TRL 1.9 to 1.16 (AsyncGRPOTrainer, and async distillation's where a release has it):
``weight_transfer=wsync.trl.WeightTransfer("http://127.0.0.1:8000")``. Any other, and whatever else is a Trainer of transformers:
``trainer.add_callback(wsync.trl.callback(trainer))``; with ``use_vllm=True, vllm_mode="server"`` and ``wsync.trl.without_sync()`` before it is made."""
from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable
from typing import Any, Callable, Optional

from transformers import TrainerCallback

from ._handover import ARRIVAL_SECONDS, Receiver, Sender, name_of
from .engines._engines import update_vllm_weights_from_disk
from .engines._http import Http
from .lib._library import Error
from .lib._mounts import Mount, mount as find_mount
from .publish._deepspeed import deepspeed
from .publish._fsdp import fsdp
from .publish._held import Source, tensors
from .publish._publisher import Publisher

_POLL_SECONDS, _ANSWER_SECONDS = 0.5, 10.0


class WeightTransfer:
    """TRL's WeightTransferProtocol, used by the main process alone: it publishes what the trainer's ranks gather as the next version of a
    lineage of its own, and has vLLM load it. vLLM is paused by the load and not before it, so that it generates while the version is
    published; what it had begun goes on with the new weights.

    url: `vllm serve`'s with VLLM_SERVER_DEV_MODE=1, on this node or where the same path is mounted. Without url, mounts with ``engine add`` and
    the policy follow-published load it, on any nodes, and each send waits for all of them. source, mount: wsync.mount's source and path, for url;
    default: what is mounted at /wsync, else this node's agent. token, pause_mode (keep, wait, abort): wsync.Engine's. timeout: seconds for
    vLLM to be there, for the version to arrive and for its load, each. options: wsync.Publisher's (agent, hf_config, dtype ...).
    A send that fails raises wsync.Error or Timeout with what vLLM was left with; it isn't resumed before it serves a whole version. Not thread safe."""

    def __init__(self, url: Optional[str] = None, model: str = "actor", *, source: Optional[str] = None, mount: Optional[str] = None,
                 token: Optional[str] = None, pause_mode: str = "keep", timeout: float = ARRIVAL_SECONDS, **options: Any):
        self._sender, self._receiver = Sender(model, **options), Receiver(source, mount)
        self._url, self._token, self._pause_mode, self._timeout = url, token, pause_mode, timeout

    def init_weight_transfer(self) -> None:
        """When training begins: agent, mount and vLLM are found, or it says which one is missing."""
        told = self._sender.announce()
        if self._url is None:
            return
        self._folders(told)
        http, deadline = Http(self._url, self._token, kind="vllm"), time.monotonic() + self._timeout
        while True:
            try:
                http.query(_ANSWER_SECONDS)
                return
            except Error as e:
                if e.errno != errno.EHOSTUNREACH or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def pause(self) -> None:
        """Nothing: the load pauses vLLM."""

    def send_weights(self, iterator: Iterable[tuple[str, Any]]) -> None:
        """Returns when vLLM serves the tensors. All of iterator is taken, also after an error, as other ranks gather for it."""
        told = self._sender.announce()
        self._sender.send(iterator)
        if self._url is None:
            self._sender.wait_loaded(self._timeout)
            return
        path = self._folders(told).folder(told["model"], name_of(told), self._timeout)
        update_vllm_weights_from_disk(self._url, path, version=name_of(told), token=self._token, pause_mode=self._pause_mode, timeout=self._timeout)

    def resume(self) -> None:
        """Nothing: vLLM was resumed when it had confirmed the load."""

    def destroy(self) -> None:
        """When training ends, also by an error. What was published stays served."""
        self._receiver.close()
        self._sender.close()

    def _folders(self, told: dict[str, Any]) -> Mount:
        found = self._receiver.opened(told)
        if found.path is None:
            raise Error(errno.ENODEV, f"{self._url} loads a path, and nothing can be mounted here: mount on vLLM's node, there `engine add` it and write "
                                      "follow-published into policy, and leave the url out")
        return found


class Callback(TrainerCallback):
    """What ``callback`` returns. ``close`` is called at the end of training; after training that raised, by its next begin or at exit."""

    def __init__(self, source: Callable[[], Source], merges: Callable[[], Any], model: str, every: int, first: bool, mount: Optional[str], loaded: bool,
                 timeout: float, options: dict[str, Any]):
        if every < 1:
            raise ValueError(f"every={every}: a version is published every so many steps, 1 or more")
        self._source, self._merges, self._model, self._every, self._first = source, merges, model, every, first
        self._path, self._loaded, self._timeout, self._options = mount, loaded, timeout, options
        self._pub: Optional[Publisher] = None
        self._mount: Optional[Mount] = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.close()
        if self._path is not None and state.is_world_process_zero:
            self._mount = find_mount(None, self._path)
        self._pub = Publisher(self._model, self._source(), **self._options)
        self._step = state.global_step
        if self._first:
            self._publish(state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self._every == 0:
            self._publish(state)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step != self._step:
            self._publish(state)
        self.close()

    def _publish(self, state: Any) -> None:
        version = state.global_step + 1
        try:
            with self._merges():
                self._pub.offload(version)
            if self._mount is not None:
                self._pub.wait_published(version, self._timeout)
                self._switch(version)
            if self._loaded:
                self._pub.wait_loaded(version, timeout=self._timeout)
        except BaseException:
            self.close()
            raise
        self._step = state.global_step

    def _switch(self, version: int) -> None:
        found = self._mount.folder(self._model, f"{version}@{self._pub.run}", self._timeout)
        name = str(version) if os.path.islink(found) else os.path.basename(found)  # no link: the number is a newer lineage's by now
        folder = os.path.dirname(found)
        path = os.path.join(folder, "version")
        try:
            control = os.open(path, os.O_WRONLY)
            try:
                os.write(control, name.encode())  # returns when the engines serve it
            finally:
                os.close(control)
        except OSError as e:
            with open(os.path.join(folder, "last_error")) as f:
                raise Error(e.errno, f"{path}: the engines did not switch to {version}: {f.read().strip() or e.strerror}") from None

    def close(self) -> None:
        """Ends the publisher and lets go of the mount. What was published stays served. May be called again."""
        pub, self._pub, found, self._mount = self._pub, None, self._mount, None
        if pub is not None:
            pub.close()
        if found is not None:
            found.close()


def callback(trainer: Any, model: str = "actor", *, source: Optional[Callable[[], Source]] = None, every: int = 1, first: bool = False,
             mount: Optional[str] = None, loaded: bool = False, timeout: float = ARRIVAL_SECONDS, **options: Any) -> Callback:
    """Publishes the trainer's weights at the end of each step, as version global_step + 1, from all its ranks: version 1 is what training starts
    from, which ``first`` publishes too. Its publisher is made when training begins. The step goes on when the weights are copied.

    source: a function that returns the publisher's source, called when training begins; default: DeepSpeed's engine, or a PEFT adapter merged
    into its model around the copy and taken out again, or the model, sharded by FSDP or not. every: steps between two versions; the last step is
    always published. mount: the path of this node's mount, which rank 0 has switch its engines at each version, and waits. loaded: waits at each
    version until the engines of all mounts serve it, which their policy (follow-published) does. timeout: seconds, of each of these waits.
    options: wsync.Publisher's; hf_config is by default the folder from which the model was loaded, if it is one.
    In training it raises what Publisher and wsync.mount raise; a switch that fails: Error with the mount's last_error. The engines serve what they did."""
    held = trainer.model
    name = getattr(getattr(held, "config", None), "_name_or_path", None)
    if name and os.path.isdir(name):
        options.setdefault("hf_config", name)
    merges: Callable[[], Any] = contextlib.nullcontext
    if source is None and hasattr(held, "merge_adapter"):
        source, merges = (lambda: _merged_source(trainer)), (lambda: _merging(held))
    return Callback(source or (lambda: _source(trainer)), merges, model, every, first, mount, loaded, timeout, options)


def without_sync() -> None:
    """For trainers with ``vllm_mode="server"`` that are made afterwards, on all ranks: TRL opens no group of NCCL with its server and sends it
    no weights. What the server samples with is then the callback's, by ``loaded=True`` or ``mount=``, and what it serves at the start is
    what training starts from. Where TRL runs vLLM itself nothing changes."""
    from trl.generation.vllm_client import VLLMClient
    from trl.generation.vllm_generation import VLLMGeneration

    own = VLLMGeneration.sync_weights
    if getattr(own, "__module__", None) == __name__:
        return

    def sync_weights(self: Any) -> None:
        if self.mode != "server":
            own(self)

    VLLMGeneration.sync_weights = sync_weights
    VLLMClient.init_communicator = lambda self, device=0: None


def _source(trainer: Any) -> Source:
    engine = getattr(trainer, "deepspeed", None)
    return deepspeed(engine) if engine is not None else fsdp(trainer.model)


def _merged_source(trainer: Any) -> Source:
    if getattr(trainer, "deepspeed", None) is not None or getattr(trainer, "is_fsdp_enabled", False):
        raise NotImplementedError("an adapter of a model that DeepSpeed or FSDP shards is not merged: publish it alone, "
                                  "callback(trainer, source=lambda: wsync.peft(trainer.model)), wsync-adapter(7)")
    model = trainer.model
    return tensors(lambda: {name.removeprefix("base_model.model.").replace(".base_layer", "").replace("modules_to_save.default.", ""): tensor
                            for name, tensor in model.named_parameters() if model.prefix not in name and "original_module" not in name})


@contextlib.contextmanager
def _merging(model: Any) -> Any:
    model.merge_adapter()
    try:
        yield
    finally:
        model.unmerge_adapter()
