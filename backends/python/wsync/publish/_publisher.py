"""Publisher: every rank calls it once per step."""
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
from collections.abc import Iterable

from ..lib import _agents, _dtypes
from ..lib._folder import VersionFiles
from ..lib._library import Error, Strings, check, ffi, lib, text
from ..read._weights import Weights
from ._held import Held, Source, Tensors, fill_whole, to_c

log = logging.getLogger("wsync")
SLICE_SECONDS = 0.3  # waits are split, since Python handles signals only between calls


def _rank_and_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as passed, else torch.distributed's, else from the environment of torchrun, Slurm or MPI, else 0 and 1."""
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
    """The number of copy threads: this rank's share of the cores that it may run on."""
    ranks = next((int(os.environ[n]) for n in ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE") if os.environ.get(n, "").isdigit()), 1)
    return max(1, min(8, len(os.sched_getaffinity(0)) // max(ranks, 1)))


def _exclusive(call):
    """Refuses a call while another thread is in one, because libwsync's publisher is not thread safe."""

    @functools.wraps(call)
    def exclusive(self, *args, **kwargs):
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(f"{self._label}: another thread is in a call of this publisher, which takes one at a time")
        try:
            if call.__name__ != "close":
                self._require_open()
            return call(self, *args, **kwargs)
        finally:
            self._lock.release()

    return exclusive


class _Interrupt:
    """Lets Python's signal handlers run while libwsync waits; if a handler raises, as for ^C, the call ends."""

    def __init__(self) -> None:
        self._raised: BaseException | None = None
        self.callback = ffi.callback("int(void *)", _return_to_python, error=1, onerror=self._store)

    def _store(self, _, raised: BaseException, __) -> None:
        self._raised = raised

    def raise_stored(self) -> None:
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised


def _return_to_python(_) -> int:
    """libwsync's callback: returning through Python runs pending signal handlers; 0 continues the wait."""
    return 0


_open_publishers: weakref.WeakSet = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Closes publishers before the interpreter unloads modules."""
    for pub in list(_open_publishers):
        with contextlib.suppress(RuntimeError):  # another thread is in a call; the process's exit ends it
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
    ``wsync.megatron(...)``, ``wsync.peft(...)``, ``wsync.tensors({...})``, or a mapping of names to tensors.
    hf_config: the folder of the Hugging Face model: its config.json gives the file's dtype and, for Megatron, the
    sizes; its small files (config, tokenizer) are published with each version (``sidecars`` names another folder).
    base: a checkpoint folder, read on all ranks: it supplies tensors that no rank holds (``frozen``), and the dtype of the
    others, by their names; a model that has most of them in names of its own is refused. dtype: the file's dtype for all floating-point tensors ("bfloat16").
    agent: "unix:/run/wsync/agent.sock" or $WSYNC_AGENT; if none runs on this node one is started, which is meant for a single
    machine and for trying out (``start_agent=False``: an error instead).
    rank, world_size: default torch.distributed's if it is initialized. run: the lineage to continue; new_run: start a
    new one, whose versions supersede the present one's (a trainer that restored an older step).
    shard_bytes: size of the files; 0: one file. threads: copy threads; default: this rank's share of the cores.
    timeout: seconds to wait for the other ranks and for a free slot.

    Tensors may be on GPUs; copies wait only for the work queued on torch's current stream when ``offload`` is called.
    share: also shares the version with processes of this host on the GPU (``wsync.map_gpu``, the engines' strategy cuda_ipc):
    "cuda_ipc", the parameters' own memory, which must not change before ``unshare``; "packed_cuda_ipc", copies of it that take twice
    its size on the device. on_demand: with share, the host's slot is filled only when the files are read. gpu_delta: keeps
    the last published bytes on the GPU and copies only the blocks that have changed.
    audit: each rank hashes the pieces that several ranks hold, and the agent compares them; if they differ (diverged replicas, gathers
    of stale memory, wrong sharding) the version is abandoned, and the error names ranks, tensor and elements: the rank that commits last
    gets it from ``offload``, all ranks from ``wait_published``. None: the first version after each registration; N: also every N-th
    version, of which a varying share is hashed; 0: none. audit_warn: the agent logs the difference and publishes. Rank 0's settings apply.

    prefer: what matters more with tensors in host memory. "stall": how long ``offload`` takes; it copies, and the agent compares versions
    afterwards. "latency": how soon mounts have the next version; ``offload`` compares while it copies, and takes about a third longer.
    "auto": the second where readers take deltas and the rates that were measured say that it pays.

    Not thread safe. All calls release the GIL while they copy or wait. Errors are ``wsync.Error`` (an OSError with
    wsync.h's errno) and ``wsync.Timeout``, and name rank, tensor and remedy; after an error the last version
    is still served and the next offload may be called."""

    def __init__(
        self, model: str, source: Source | dict, *, hf_config=None, base=None, sidecars=None, dtype=None, agent: str | None = None,
        start_agent: bool = True, rank: int | None = None, world_size: int | None = None, run: str | None = None, new_run: bool = False,
        shard_bytes: int = 0, max_slots: int = 0, threads: int | None = None, timeout: float = 60.0, share: str | None = None,
        on_demand: bool = False, gpu_delta: bool = False, audit: int | None = None, audit_warn: bool = False, prefer: str = "auto",
    ) -> None:  # fmt: skip
        self._pub = self._extraction = self._meta = self._version = None
        self._has_streams = False  # the extraction has streams
        self._shared_tensors = None  # tensors that must live until unshare
        self._lock = threading.Lock()
        self.model = model
        self.rank, self.world_size = _rank_and_size(rank, world_size)
        if self.rank < 0 or self.world_size < 1:
            raise ValueError(f"rank {self.rank} of world_size {self.world_size} makes no sense: ranks count from 0 to world_size - 1")
        self._source = source if isinstance(source, Source) else Tensors(source)
        self._hf_config, self._base, self._dtype = hf_config, base, _dtypes.weight_dtype(dtype)
        self._overflow_logged = self._frozen_logged = False
        self._agent = _agents.ensure(agent) if start_agent else agent  # None: libwsync's default
        keep = Strings()
        config = ffi.new("wsync_config *")
        config.struct_size = ffi.sizeof("wsync_config")
        config.agent, config.model, config.run = keep(self._agent), keep(model), keep(run)
        files = self._source.files()
        if files and base is not None:
            raise ValueError(f"{self._label}: an adapter has no base=: a version of it holds its own tensors only")
        if sidecars is None and not files:
            sidecars = _folder_of(hf_config)
        config.base, config.sidecars = keep(base), keep(sidecars)
        given = [{"name": keep(name), "data": keep.array("char[]", data), "bytes": len(data)} for name, data in files.items()]
        config.files, config.n_files = keep.array("wsync_sidecar[]", given), len(given)
        config.rank, config.world_size, config.new_run = self.rank, self.world_size, bool(new_run)
        config.shard_bytes, config.max_slots = shard_bytes, max_slots
        if (threads is not None and threads < 1) or max_slots < 0 or shard_bytes < 0 or not timeout > 0:
            raise ValueError(f"{self._label}: threads and timeout must be above 0, max_slots and shard_bytes 0 or more")
        config.n_threads, config.timeout_ms = threads or _threads(), max(1, _ms(timeout))
        if share not in (None, "cuda_ipc", "packed_cuda_ipc"):
            raise ValueError(f"{self._label}: share={share!r}: it is 'cuda_ipc' or 'packed_cuda_ipc'")
        if on_demand and share is None:
            raise ValueError(f"{self._label}: on_demand without share: no process could have the version before its files are read")
        config.share, config.on_demand, config.gpu_delta = keep(share), bool(on_demand), bool(gpu_delta)
        if audit is not None and not 0 <= audit < 1 << 31:
            raise ValueError(f"{self._label}: audit={audit!r}: it is every how many versions, 0 for none")
        config.audit, config.audit_warns = 0 if audit is None else (audit or -1), bool(audit_warn)
        if prefer not in ("auto", "stall", "latency"):
            raise ValueError(f"{self._label}: prefer={prefer!r}: it is 'auto', 'stall' or 'latency'")
        config.prefer = keep(prefer)
        self._share = share
        self._interrupt = _Interrupt()
        config.interrupted = self._interrupt.callback
        out = ffi.new("wsync_publisher **")
        self._check(lib.wsync_publisher_open(config, out))
        self._pub = out[0]
        _open_publishers.add(self)

    @property
    def _label(self) -> str:
        return f"rank {self.rank} of {self.world_size}, model {self.model}"

    def _check(self, rc: int) -> int:
        self._interrupt.raise_stored()
        try:
            return check(rc)
        except Error as e:
            raise type(e)(e.errno, f"{self._label}: {e.strerror}") from None
        except MemoryError as e:
            raise MemoryError(f"{self._label}: {e}") from None

    def _wait_in_slices(self, call, timeout: float | None) -> None:
        """Repeats call(milliseconds) until it does not time out, or timeout has passed (None: without end). The wait is split, because
        Python handles signals such as ^C only between calls."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else end - time.monotonic()
            last = left is not None and left <= SLICE_SECONDS
            rc = call(_ms(left if last else SLICE_SECONDS))
            if rc != -errno.ETIMEDOUT or last:
                self._check(rc)
                return

    def _version_number(self, version: int) -> int:
        try:
            number = operator.index(version)
        except TypeError:
            raise TypeError(f"{self._label}: a version is a whole number, not {version!r}") from None
        if not 0 <= number < 1 << 63:
            raise ValueError(f"{self._label}: a version is a number from 0 to 2^63 - 1, not {version!r}")
        return number

    @_exclusive
    def offload(self, version: int) -> None:
        """Copies this rank's part into the agent's free slot and commits it. Every rank calls it with the same version number, higher
        than the previous one. When it returns, the weights may change; the agent announces the version when all ranks have committed
        and its blocks are hashed. A model whose shapes or shards have changed is registered again."""
        version = self._version_number(version)
        try:
            held = self._held()
        except (TypeError, ValueError, NotImplementedError) as e:  # about a tensor; the rank is added to the message
            raise next(k for k in (TypeError, ValueError, NotImplementedError) if isinstance(e, k))(f"{self._label}: {e}") from e
        n = ffi.new("size_t *")
        params = lib.wsync_extraction_params(self._extraction, n)
        self._check(lib.wsync_offload(self._pub, params, n[0], version))
        self._shared_tensors = held if self._share == "cuda_ipc" else None  # other processes map this memory, so torch must not reuse it
        del held
        self._version = version
        self._log_warnings()

    @_exclusive
    def offload_stream(self, version: int, layout: Iterable[tuple], tensors: Iterable[tuple], file: str | None = None) -> None:
        """The same for whole tensors that exist one after another, as a framework's gather makes them: each is copied before the next one is
        taken. layout: (name, dtype, shape) of each, in the file's order; tensors: (name, tensor) of each, once; file: the name of the one
        file. A rank that others wait for in the iterator's collective calls takes all of it, also after an error."""
        keep, rest = Strings(), iter(tensors)
        try:
            version, layout = self._version_number(version), [(name, dtype, tuple(shape)) for name, dtype, shape in layout]
            params = {name: _whole(keep, name, dtype, shape, file) for name, dtype, shape in layout}
            if len(params) != len(layout):
                raise ValueError(f"{self._label}: a name is in the layout twice")
            if self._meta != (layout, file):
                self._meta = self._extraction = None
                array = keep.array("wsync_param[]", [p[0] for p in params.values()])
                self._check(lib.wsync_register(self._pub, array, len(params)))
                self._meta = layout, file
            self._check(lib.wsync_begin(self._pub, version))
            try:
                for name, tensor in rest:
                    self._put(params, name, tensor)
                self._check(lib.wsync_commit(self._pub))
            except BaseException:
                lib.wsync_abandon(self._pub)
                raise
        except Exception:
            self._meta = None  # the agent may be another one
            for _ in rest:
                pass
            raise
        self._version = version
        self._log_warnings()

    def _put(self, params: dict, name: str, tensor) -> None:
        held = Held()
        held.add(name, tensor)
        param = params.get(name)
        shape = tuple(held.meta[0][2]) if held.meta else None
        if param is None or shape != tuple(param.shape[0 : param.n_dims]):
            raise ValueError(f"{self._label}: {name} {shape} is not in the layout that was given" + (f": it has {list(param.shape[0:param.n_dims])}" if param else ""))
        fill_whole(param, held)
        self._check(lib.wsync_put(self._pub, param))

    def _held(self):
        """Describes this step's tensors and passes their addresses to the extraction. Keep the result until they are copied."""
        held = self._source.held()
        if held.meta != self._meta:
            self._extract(held)
        else:
            addresses = array.array("Q", held.addresses)
            lib.wsync_extraction_move(self._extraction, ffi.from_buffer("const void *[]", addresses) if held.addresses else ffi.NULL)
        self._set_streams(held)
        return held

    def _set_streams(self, held) -> None:
        streams = held.all_streams()
        if streams or self._has_streams:
            given = array.array("Q", streams or [0] * len(held.addresses))
            lib.wsync_extraction_follow(self._extraction, ffi.from_buffer("void *[]", given) if given else ffi.NULL)
        self._has_streams = bool(streams)

    def _extract(self, held) -> None:
        keep, options, more = Strings(), ffi.new("wsync_extract_options *"), self._source.options()
        options.struct_size = ffi.sizeof("wsync_extract_options")
        options.held_size, options.fusion_size = ffi.sizeof("wsync_held"), ffi.sizeof("wsync_fusion")
        options.kind, options.hf_config, options.base = keep(self._source.kind), keep(self._hf_config), keep(self._base)
        options.dtype, options.tied, options.adapter = keep(self._dtype), bool(more.get("tied")), keep(more.get("adapter"))
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
        saved = self._source.saved(held.meta)
        given = to_c(held.meta, held.addresses, keep, saved.names if saved else {})
        self._check(lib.wsync_extract(options, given, len(held.meta), out))
        extraction = ffi.gc(out[0], lib.wsync_extraction_free)
        if saved:
            self._check_names_and_shapes(extraction, saved.shapes)
        self._extraction, self._meta = extraction, held.meta

    def _check_names_and_shapes(self, extraction, expected) -> None:
        """Compares the extracted names and shapes with those that the framework itself would save."""
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

    def _log_warnings(self) -> None:
        first = ffi.new("char **")
        n = lib.wsync_overflows(self._pub, first)
        if n and not self._overflow_logged:
            log.warning("rank %d: %d elements are too large for the file's dtype and became infinite, first in %s", self.rank, n, text(first[0]))
        self._overflow_logged = bool(n)
        frozen = self.frozen
        if frozen and not self._frozen_logged:
            log.info("%d tensors that no rank holds come from %s: %s", len(frozen), self._base, ", ".join(frozen[:10]) + (", ..." if len(frozen) > 10 else ""))
        self._frozen_logged = bool(frozen)

    @property
    def frozen(self) -> list[str]:
        """Names of the tensors that come from ``base`` because no rank holds them; known on rank 0 after an offload."""
        self._require_open()
        names, i = [], 0
        while (name := lib.wsync_frozen(self._pub, i)) != ffi.NULL:
            names.append(text(name))
            i += 1
        return names

    @property
    def overflows(self) -> int:
        """The number of finite elements of this rank that became infinite in the last offload, being too large for the file's dtype."""
        self._require_open()
        return lib.wsync_overflows(self._pub, ffi.NULL)

    def offload_report(self) -> str:
        """How the last offload went from host memory: "copy", or "pass, 280 blocks by lines, 8 whole, 1.50% changed" (``prefer``)."""
        self._require_open()
        return text(lib.wsync_offload_report(self._pub))

    def gpu_report(self) -> str:
        """A sentence on how the last version was copied from the GPUs, and why not faster; "" if no tensor was on a GPU."""
        self._require_open()
        return text(lib.wsync_gpu_report(self._pub))

    @_exclusive
    def unshare(self, timeout: float | None = 60.0) -> None:
        """Ends the sharing of the version by ``share``: no further process can open it, and this waits until every process that has it
        open has closed it or ended. Then the parameters may be changed. Timeout names the remaining readers; call this again."""
        self._wait_in_slices(lambda ms: lib.wsync_unshare(self._pub, ms), timeout)
        self._shared_tensors = None

    @property
    def run(self) -> str:
        """The lineage of the published versions; "" before the first offload."""
        self._require_open()
        return text(lib.wsync_run(self._pub))

    @_exclusive
    def wait_published(self, version: int, timeout: float | None = 60.0) -> None:
        """Waits until a version that this rank has offloaded is announced. Timeout; Error (ECANCELED) if it was abandoned."""
        self._wait_in_slices(lambda ms: lib.wsync_wait_published(self._pub, version, ms), timeout)

    @_exclusive
    def wait_delta(self, version: int | None = None, timeout: float | None = 60.0) -> bool:
        """Waits until the delta from the previous version is made (None: that of the newest version). False: there will be none, and
        mounts pull the whole version, because it is the first or too much has changed."""
        try:
            self._wait_in_slices(lambda ms: lib.wsync_wait_delta(self._pub, version or 0, ms), timeout)
        except Error as e:
            if e.errno != errno.ENODATA:
                raise
            return False
        return True

    @_exclusive
    def wait_loaded(self, version: int, who: str | int | None = "all", timeout: float | None = 120.0) -> None:
        """Waits until engines serve this or a later version. who: "all" mounts, a number of mounts, or one mount (HOST or
        HOST:MOUNTPOINT). Timeout names the mounts that are missing."""
        keep = Strings()
        name = keep("all" if who is None else str(who))
        self._wait_in_slices(lambda ms: lib.wsync_wait_loaded(self._pub, version, name, ms), timeout)

    def weights(self, version: int | None = None, framework: str | None = None) -> Weights:
        """Opens a published version (None: the last one offloaded; waits until it is announced) like ``wsync.open``, from the agent's
        memory on this host, without a copy. vLLM's and SkyRL's own senders can send from its ``source()``.
        While it or one of its tensors lives, the agent keeps that slot and uses another one for the next version."""
        self._require_open()
        version = self._version if version is None else version
        if version is None:
            raise ValueError("nothing was offloaded yet")
        self.wait_published(version)
        return Weights(VersionFiles(self._agent, self.model, version), framework)

    def _require_open(self) -> None:
        if self._pub is None:
            raise ValueError("this publisher is closed")

    @_exclusive
    def close(self) -> None:
        """Disconnects. Published versions stay served, and a version that this rank has committed can still be completed by the others
        (except if the trainer spans nodes: call ``wait_published`` first). Called by ``with``, when the object is deleted, and at exit."""
        pub, self._pub = self._pub, None
        if pub is not None:
            lib.wsync_close(pub)
        self._extraction = self._meta = self._shared_tensors = None

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pub", None) is not None:
            self.close()


def _ms(seconds: float | None) -> int:
    return -1 if seconds is None else max(0, min(int(seconds * 1000), 2**31 - 1))


def _whole(keep: Strings, name: str, dtype, shape: tuple, file: str | None):
    """A wsync_param that is all of one tensor."""
    param = ffi.new("wsync_param *")
    param.name, param.dtype, param.n_dims, param.shape, param.file = keep(name), _dtypes.number(dtype, name), len(shape), shape, keep(file)
    param.piece.kind, param.piece.size = lib.WSYNC_BOX, shape
    return param


def _folder_of(hf_config):
    """The folder whose small files are published with a version; None if hf_config is a config.json by itself."""
    return hf_config if hf_config is None or os.path.isdir(hf_config) else None
