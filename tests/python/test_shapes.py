"""The interfaces of vLLM's and SkyRL's senders."""
import numpy
import pytest
import world
import wsync

TENSORS = {f"model.layers.{i}.{part}.weight": ("F32", [256, n]) for i in range(3) for part, n in (("attn.q", 64), ("attn.k", 16), ("mlp.up", 128))}
TENSORS |= {"lm_head.weight": ("F16", [4, 4]), "step": ("I64", [])}


@pytest.fixture
def weights():
    return wsync.open(world.checkpoint(TENSORS), "numpy")


def test_source(weights):
    """a WeightSource: metadata and every iteration have the same names, dtypes and shapes in the same order"""
    source = weights.source()
    assert len(source) == len(TENSORS) and source.held_names() is None
    for _ in range(2):
        seen = [(name, t.dtype, t.shape) for name, t in source]
        assert seen == [(m.name, m.dtype, m.shape) for m in source.metadata()]
    assert {n: list(s) for n, _, s in seen} == {n: s for n, (_, s) in TENSORS.items()}


def test_vllm_source():
    """vLLM's WeightSource has the same abstract methods, and isinstance accepts ours"""
    base = pytest.importorskip("vllm.distributed.weight_transfer.base", reason="vLLM is not installed")
    source = wsync.open(world.checkpoint(TENSORS), "torch").source()
    assert isinstance(source, base.WeightSource)
    assert set(vars(base.WeightSource)) & {n for n in vars(base.WeightSource) if not n.startswith("_")} <= set(dir(source))
    flat = [n for group, tensors in source.iter_groups() for n, t in zip(group, tensors) if tuple(t.shape) == tuple(TENSORS[n][1])]
    assert sorted(flat) == sorted(TENSORS) and [g for g, _ in source.iter_groups()] == base.WeightSource.groups(source)
    assert {f for f in base.ParamMeta.__dataclass_fields__} == set(wsync.ParamMeta._fields)


def test_one_each(weights):
    """without grouping each tensor is a chunk, and no tensor is copied"""
    chunks = list(wsync.WeightExtractor(weights).extract_weights())
    assert [len(c) for c in chunks] == [1] * len(TENSORS) and [c.names[0] for c in chunks] == list(weights)
    assert all(numpy.shares_memory(c.tensors[0], weights[c.names[0]]) for c in chunks if c.total_numel)


@pytest.mark.parametrize("threshold", (0, 100 << 10, 300 << 10, 1 << 30))
def test_modules(weights, threshold):
    """a module's tensors stay together in a chunk, which stays within the threshold unless one module is larger"""
    extractor = wsync.WeightExtractor(weights, group_by_module=True, batch_size_threshold_gb=threshold / 2**30)
    chunks = list(extractor.extract_weights())
    names = [n for c in chunks for n in c.names]
    assert sorted(names) == sorted(TENSORS)
    module = lambda name: ".".join(name.split(".")[:-2])  # noqa: E731
    for c in chunks:
        assert c.total_size_bytes == sum(t.nbytes for t in c.tensors) and c.total_numel == sum(t.size for t in c.tensors)
        assert c.total_size_bytes <= threshold or len({module(n) for n in c.names}) == 1
        assert c.shapes == [list(t.shape) for t in c.tensors] and c.dtypes == [str(t.dtype) for t in c.tensors]
    for a, b in zip(chunks, chunks[1:]):
        assert module(a.names[-1]) != module(b.names[0]), "a module is in two chunks"
        first = sum(weights[n].nbytes for n in b.names if module(n) == module(b.names[0]))
        assert a.total_size_bytes + first > threshold, "the next module would have gone along"
    told = extractor.get_weight_metadata()
    assert told["names"] == names and told["shapes"] == [s for c in chunks for s in c.shapes] and told["dtype_names"] == [d for c in chunks for d in c.dtypes]


@pytest.mark.filterwarnings("ignore:invalid value")  # random bits are NaNs, too
def test_cast(weights):
    """a dtype casts the floats and leaves integers as they are"""
    extractor = wsync.WeightExtractor(weights, group_by_module=True, batch_size_threshold_gb=1)
    (chunk,) = extractor.extract_weights("float64")
    by_name = dict(zip(chunk.names, chunk.tensors))
    assert by_name["step"].dtype == numpy.int64 and {str(t.dtype) for n, t in by_name.items() if n != "step"} == {"float64"}
    assert numpy.array_equal(by_name["lm_head.weight"], weights["lm_head.weight"].astype("float64"), equal_nan=True)
    assert extractor.get_weight_metadata("float64")["dtype_names"] == chunk.dtypes
    with pytest.raises(ValueError, match="2 names"):
        wsync.WeightChunk(["a", "b"], ["x"], [[1]], [None])
