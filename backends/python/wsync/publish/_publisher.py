"""Publisher: one call a step, from every rank."""
from __future__ import annotations

import array
import atexit
import contextlib
import errno
import functools
import logging
import operator
import os
import threading
import time
import weakref

from ..lib import _agents, _dtypes
from ..lib._folder import VersionFiles
from ..lib._library import Error, Strings, Timeout, check, ffi, lib, text
from ..read._weights import Weights
from ._held import Source, Tensors, to_c

log = logging.getLogger("wsync")
SLICE_SECONDS = 0.3  # of a wait, between which Python hears of signals


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """As given, else torch.distributed's, else what torchrun, Slurm or MPI put into the environment, else 0 of 1."""
    if (rank is None) != (world_size is None):
        raise ValueError("give both rank and world_size, or neither")
    if rank is not None:
        return rank, world_size
    import sys

    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    for names in (("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")):
        if all(n in os.environ for n in names):
            return int(os.environ[names[0]]), int(os.environ[names[1]])
    return 0, 1


def _threads() -> int:
    """This rank's share of the cores that it may run on."""
    ranks = next((int(os.environ[n]) for n in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE") if os.environ.get(n, "").isdigit()), 1)
    return max(1, min(8, len(os.sched_getaffinity(0)) // max(ranks, 1)))


def _one_at_a_time(call):
    """libwsync's publisher is one thread's at a time: a second one is told so instead of breaking the first one's call."""

    @functools.wraps(call)
    def alone(self, *args, **kwargs):
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(f"{self._who}: another thread is in a call of this publisher, which takes one at a time")
        try:
            if call.__name__ != "close":
                self._open()
            return call(self, *args, **kwargs)
        finally:
            self._lock.release()

    return alone


class _Interrupt:
    """Lets Python's signal handlers run while libwsync waits: they may raise, as ^C does, and then the call ends."""

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self.callback = ffi.callback("int(void *)", _go_on, error=1, onerror=self._keep)

    def _keep(self, _, raised: BaseException, __) -> None:
        self._raised = raised

    def look(self) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised


def _go_on(_) -> int:
    """Called: so it is Python's turn, and signals are handled."""
    return 0


_opened: weakref.WeakSet = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Before the interpreter takes modules apart."""
    for pub in list(_opened):
        with contextlib.suppress(RuntimeError):  # another thread is in a call of it: it goes with the process
            pub.close()


class Publisher:
    """Publishes a model's weights, version by version.

    ::

        pub = wsync.Publisher("actor", wsync.fsdp(model), hf_config="path/to/hf")
        for step in range(1, n + 1):
            train(...)
            pub.offload(version=step)             # every rank; returns when the weights may change again
            pub.wait_loaded(step, timeout=120)    # optional: until the engines serve it

    model: the name below the mounts, ``/wsync/<model>``. source: ``wsync.fsdp(...)``, ``wsync.deepspeed(...)``,
    ``wsync.megatron(...)``, ``wsync.tensors({...})``, or a mapping of names to tensors.
    hf_config: the folder of the Hugging Face model: its config.json gives the file's dtype and, for Megatron, the
    sizes; its small files (config, tokenizer) go along with each version (``sidecars`` names another folder).
    base: a checkpoint folder, read on all ranks: tensors that no rank holds come from it (they are ``frozen``), and
    the others get their dtype from it. dtype: the file's, for all floating-point tensors ("bfloat16").
    agent: "unix:/run/wsync/agent.sock" or $WSYNC_AGENT; one is started on this node where none runs, which is for one
    machine and for trying out (``start_agent=False``: an error instead).
    rank, world_size: torch.distributed's where it is set up. run: the lineage to go on with; new_run: open a
    new one, whose numbers supersede the present one's (a trainer that restored an older step).
    shard_bytes: size of the files; 0: one. threads: copying threads; default: this rank's share of the cores.
    timeout: seconds to wait for the other ranks and for a free slot.

    Tensors may be on GPUs; copies wait for what is queued on torch's current stream when ``offload`` is called, and nothing else.
    share: also offered to processes of this host on the GPU itself (``wsync.map_gpu``, the strategy cuda_ipc of engines):
    "cuda_ipc", the parameters' own memory, which must not change before ``unshare``; "packed_cuda_ipc", copies of it that take twice
    its size on the device. on_demand: with share, the host's slot is filled only when somebody reads the files. gpu_delta: keeps
    the last published bytes on the GPU and copies what has changed.
    audit: pieces that several ranks hold are hashed by each of them and compared; where they differ (diverged replicas, gathers of
    stale memory, a wrong sharding) the version is abandoned, and the error names ranks, tensor and elements: the rank that commits last gets
    it from ``offload``, all from ``wait_published``. None: the first version after each registration; N: also every N-th one, of which a
    share is hashed, another each time; 0: none. audit_warn: the agent logs the difference, and publishes. Rank 0's count.

    One thread at a time. All calls release the GIL while they copy or wait. Errors are ``wsync.Error`` (an OSError with
    wsync.h's errno) and ``wsync.Timeout``, and name rank, tensor and remedy; after one, the last version
    is still served and the next offload may be called."""

    def __init__(
        self, model: str, source: Source | dict, *, hf_config=None, base=None, sidecars=None, dtype=None, agent: str | None = None,
        start_agent: bool = True, rank: int | None = None, world_size: int | None = None, run: str | None = None, new_run: bool = False,
        shard_bytes: int = 0, max_slots: int = 0, threads: int | None = None, timeout: float = 60.0, share: str | None = None,
        on_demand: bool = False, gpu_delta: bool = False, audit: int | None = None, audit_warn: bool = False,
    ) -> None:  # fmt: skip
        self._pub = self._extraction = self._meta = self._version = None
        self._follows = False  # the extraction has streams
        self._shared = None  # what lives until it is unshared
        self._lock = threading.Lock()
        self.model = model
        self.rank, self.world_size = _place(rank, world_size)
        if self.rank < 0 or self.world_size < 1:
            raise ValueError(f"rank {self.rank} of world_size {self.world_size} makes no sense: ranks count from 0 to world_size - 1")
        self._source = source if isinstance(source, Source) else Tensors(source)
        self._hf_config, self._base, self._dtype = hf_config, base, _dtypes.of_weights(dtype)
        self._told_overflow = self._told_frozen = False
        self._agent = _agents.ensure(agent) if start_agent else agent  # None: libwsync knows where
        keep = Strings()
        config = ffi.new("wsync_config *")
        config.struct_size = ffi.sizeof("wsync_config")
        config.agent, config.model, config.run = keep(self._agent), keep(model), keep(run)
        config.base, config.sidecars = keep(base), keep(sidecars if sidecars is not None else _folder_of(hf_config))
        config.rank, config.world_size, config.new_run = self.rank, self.world_size, bool(new_run)
        config.shard_bytes, config.max_slots = shard_bytes, max_slots
        if (threads is not None and threads < 1) or max_slots < 0 or shard_bytes < 0 or not timeout > 0:
            raise ValueError(f"{self._who}: threads, timeout, max_slots and shard_bytes are no negative numbers, and the first two not 0")
        config.n_threads, config.timeout_ms = threads or _threads(), max(1, _ms(timeout))
        if share not in (None, "cuda_ipc", "packed_cuda_ipc"):
            raise ValueError(f"{self._who}: share={share!r}: it is 'cuda_ipc' or 'packed_cuda_ipc'")
        if on_demand and share is None:
            raise ValueError(f"{self._who}: on_demand without share: nobody could have the version before its files are read")
        config.share, config.on_demand, config.gpu_delta = keep(share), bool(on_demand), bool(gpu_delta)
        if audit is not None and not 0 <= audit < 1 << 31:
            raise ValueError(f"{self._who}: audit={audit!r}: it is every how many versions, 0 for none")
        config.audit, config.audit_warns = 0 if audit is None else (audit or -1), bool(audit_warn)
        self._share = share
        self._interrupt = _Interrupt()
        config.interrupted = self._interrupt.callback
        out = ffi.new("wsync_publisher **")
        self._checked(lib.wsync_publisher_open(config, out))
        self._pub = out[0]
        _opened.add(self)

    @property
    def _who(self) -> str:
        return f"rank {self.rank} of {self.world_size}, model {self.model}"

    def _checked(self, rc: int) -> int:
        self._interrupt.look()
        try:
            return check(rc)
        except Error as e:
            raise type(e)(e.errno, f"{self._who}: {e.strerror}") from None
        except MemoryError as e:
            raise MemoryError(f"{self._who}: {e}") from None

    def _wait(self, call, timeout: float | None) -> None:
        """Calls it with milliseconds until it does not time out, or for all of timeout (None: for ever). In slices, since Python hears of
        a signal, such as ^C, between two calls only."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else end - time.monotonic()
            last = left is not None and left <= SLICE_SECONDS
            rc = call(_ms(left if last else SLICE_SECONDS))
            if rc != -errno.ETIMEDOUT or last:
                self._checked(rc)
                return

    def _number(self, version: int) -> int:
        try:
            number = operator.index(version)
        except TypeError:
            raise TypeError(f"{self._who}: a version is a whole number, not {version!r}") from None
        if not 0 <= number < 1 << 63:
            raise ValueError(f"{self._who}: a version is a number from 0 to 2^63 - 1, not {version!r}")
        return number

    @_one_at_a_time
    def offload(self, version: int) -> None:
        """Copies this rank's part into the agent's free slot and commits it. Every rank calls it with the same
        version, higher than the one before. When it returns, the weights may change; the version is announced when
        all ranks have committed and its blocks are hashed. A model whose shapes or shards have changed is
        registered again."""
        version = self._number(version)
        try:
            held = self._held()
        except (TypeError, ValueError, NotImplementedError) as e:  # what a tensor is; named by its rank, too
            raise next(k for k in (TypeError, ValueError, NotImplementedError) if isinstance(e, k))(f"{self._who}: {e}") from e
        n = ffi.new("size_t *")
        params = lib.wsync_extraction_params(self._extraction, n)
        self._checked(lib.wsync_offload(self._pub, params, n[0], version))
        self._shared = held if self._share == "cuda_ipc" else None  # others have it open; torch must not use its memory again
        del held
        self._version = version
        self._tell()

    def _held(self):
        """This step's tensors, which the extraction has the addresses of; to be kept until they are copied."""
        held = self._source.held()
        if held.meta != self._meta:
            self._extract(held)
        else:
            addresses = array.array("Q", held.addresses)
            lib.wsync_extraction_move(self._extraction, ffi.from_buffer("const void *[]", addresses) if held.addresses else ffi.NULL)
        self._follow(held)
        return held

    def _follow(self, held) -> None:
        streams = held.all_streams()
        if streams or self._follows:
            given = array.array("Q", streams or [0] * len(held.addresses))
            lib.wsync_extraction_follow(self._extraction, ffi.from_buffer("void *[]", given) if given else ffi.NULL)
        self._follows = bool(streams)

    def _extract(self, held) -> None:
        keep, options, more = Strings(), ffi.new("wsync_extract_options *"), self._source.options()
        options.struct_size = ffi.sizeof("wsync_extract_options")
        options.kind, options.hf_config, options.base = keep(self._source.kind), keep(self._hf_config), keep(self._base)
        options.dtype, options.tied = keep(self._dtype), bool(more.get("tied"))
        fusions, renames, features = more.get("fusions", ()), more.get("renames", ()), more.get("features", ())
        options.n_fusions, options.n_renames, options.n_features = len(fusions), len(renames), len(features)
        options.fusions = keep.array("wsync_fusion[]", len(fusions))
        for c, (held_name, names, stacked, dim) in zip(options.fusions[0 : len(fusions)], fusions):
            c.held, c.n_names, c.stacked, c.dim = keep(held_name), len(names), stacked, dim
            c.names = keep.array("char *[]", [keep(x) for x in names])
        options.renames = keep.array("wsync_rename[]", [{"held": keep(a), "file": keep(b)} for a, b in renames])
        options.features = keep.array("char *[]", [keep(f) for f in features])
        for name, (rank, size) in more.get("groups", {}).items():
            group = getattr(options, name)
            group.rank, group.size = rank, size
        out = ffi.new("wsync_extraction **")
        self._checked(lib.wsync_extract(options, to_c(held.meta, held.addresses, keep), len(held.meta), out))
        fresh = ffi.gc(out[0], lib.wsync_extraction_free)
        self._compare(fresh, held.meta)
        self._extraction, self._meta = fresh, held.meta

    def _compare(self, extraction, meta) -> None:
        """With the framework's own word on the file, where it has one."""
        expected = self._source.expected(meta)
        if expected is None:
            return
        n = ffi.new("size_t *")
        params = lib.wsync_extraction_params(extraction, n)
        for i in range(n[0]):
            name, shape = text(params[i].name), tuple(params[i].shape[0 : params[i].n_dims])
            if expected.get(name) != shape:
                raise NotImplementedError(
                    f"{name} {list(shape)} is not what transformers would save of this model"
                    + (f" ({list(expected[name])})" if name in expected else "")
                    + ": its conversion is not known here; publish by wsync.tensors({name: tensor}) in the file's names"
                )

    def _tell(self) -> None:
        first = ffi.new("char **")
        n = lib.wsync_overflows(self._pub, first)
        if n and not self._told_overflow:
            log.warning("rank %d: %d elements are too large for the file's dtype and became infinite, first in %s", self.rank, n, text(first[0]))
        self._told_overflow = bool(n)
        frozen = self.frozen
        if frozen and not self._told_frozen:
            log.info("%d tensors that no rank holds come from %s: %s", len(frozen), self._base, ", ".join(frozen[:10]) + (", ..." if len(frozen) > 10 else ""))
        self._told_frozen = bool(frozen)

    @property
    def frozen(self) -> list[str]:
        """Names of the tensors that come from ``base``, since no rank holds them; known on rank 0 after an offload."""
        self._open()
        names, i = [], 0
        while (name := lib.wsync_frozen(self._pub, i)) != ffi.NULL:
            names.append(text(name))
            i += 1
        return names

    @property
    def overflows(self) -> int:
        """Finite elements of this rank that became infinite in the last offload, in a file's dtype that cannot hold them."""
        self._open()
        return lib.wsync_overflows(self._pub, ffi.NULL)

    def gpu_report(self) -> str:
        """How the last version left the GPUs, and why not faster, in a sentence; "" where nothing was on one."""
        self._open()
        return text(lib.wsync_gpu_report(self._pub))

    @_one_at_a_time
    def unshare(self, timeout: float | None = 60.0) -> None:
        """Takes back what ``share`` offers: nobody can open it any more, and this waits until all who have it have closed it or
        ended. Then the parameters may be changed. Timeout names who still has it; call it again."""
        self._wait(lambda ms: lib.wsync_unshare(self._pub, ms), timeout)
        self._shared = None

    @property
    def run(self) -> str:
        """The lineage that is written; "" before the first offload."""
        self._open()
        return text(lib.wsync_run(self._pub))

    @_one_at_a_time
    def wait_published(self, version: int, timeout: float | None = 60.0) -> None:
        """Until a version that this rank has offloaded is announced. Timeout, or Error (ECANCELED) when it was abandoned."""
        self._wait(lambda ms: lib.wsync_wait_published(self._pub, version, ms), timeout)

    @_one_at_a_time
    def wait_delta(self, version: int | None = None, timeout: float | None = 60.0) -> bool:
        """Until the difference to the version before is made (None: of the newest version). False: there will be none, and the
        version travels whole: it is the first, or too much has changed."""
        try:
            self._wait(lambda ms: lib.wsync_wait_delta(self._pub, version or 0, ms), timeout)
        except Error as e:
            if e.errno != errno.ENODATA:
                raise
            return False
        return True

    @_one_at_a_time
    def wait_loaded(self, version: int, who: str | int | None = "all", timeout: float | None = 120.0) -> None:
        """Until the engines serve it or a later version: of all mounts, of a number of them, or of one (HOST or
        HOST:MOUNTPOINT). Timeout names who is missing."""
        keep = Strings()
        name = keep("all" if who is None else str(who))
        self._wait(lambda ms: lib.wsync_wait_loaded(self._pub, version, name, ms), timeout)

    def weights(self, version: int | None = None, framework: str | None = None) -> Weights:
        """A published version (None: the last that was offloaded; waits until it is announced) as ``wsync.open`` has a mounted one,
        out of the agent's memory on this host, without a copy. Its ``source()`` is what vLLM's and SkyRL's own senders push from.
        While it or a tensor of it lives the agent keeps that slot and takes another for the next version."""
        self._open()
        version = self._version if version is None else version
        if version is None:
            raise ValueError("nothing was offloaded yet")
        self.wait_published(version)
        return Weights(VersionFiles(self._agent, self.model, version), framework)

    def _open(self) -> None:
        if self._pub is None:
            raise ValueError("this publisher is closed")

    @_one_at_a_time
    def close(self) -> None:
        """Disconnects; what is published stays served, and what this rank has committed may still become whole (but where the trainer
        spans nodes: there ``wait_published`` before). Called by ``with``, when the object goes, and at exit."""
        pub, self._pub = self._pub, None
        if pub is not None:
            lib.wsync_close(pub)
        self._extraction = self._meta = self._shared = None

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pub", None) is not None:
            self.close()


def _ms(seconds: float | None) -> int:
    return -1 if seconds is None else max(0, min(int(seconds * 1000), 2**31 - 1))


def _folder_of(hf_config):
    """What goes along with a version: the folder; of a config.json by itself, nothing else."""
    return hf_config if hf_config is None or os.path.isdir(hf_config) else None
