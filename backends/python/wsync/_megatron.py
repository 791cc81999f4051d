"""Megatron-core: local parameters, the parallel groups' ranks and layer numbers."""
from __future__ import annotations

from ._held import Held, Source


def megatron(chunks) -> Source:
    """A Megatron-core GPTModel, or the list of this rank's model chunks (virtual pipeline stages), wrapped or not:
    dense Llama, Qwen2, Qwen3 and Qwen3-MoE with tensor, pipeline and expert parallelism. What is not known is refused by
    name. The publisher needs ``hf_config``."""
    return Megatron(list(chunks) if isinstance(chunks, (list, tuple)) else [chunks])


def _unwrap(model):
    while hasattr(model, "module"):
        model = model.module
    return model


class Megatron(Source):
    kind = "megatron"

    def __init__(self, chunks: list) -> None:
        self._chunks = [_unwrap(c) for c in chunks]

    def held(self) -> Held:
        held = Held()
        for chunk in self._chunks:
            layers = {}
            for i, layer in enumerate(chunk.decoder.layers):
                for name, _ in layer.named_parameters(prefix=f"decoder.layers.{i}"):
                    layers[name] = layer.layer_number
            for name, p in chunk.named_parameters():
                held.add(name, p, layers.get(name, 0))
        return held

    def options(self) -> dict:
        from megatron.core import parallel_state as ps

        groups = {
            "tensor": (ps.get_tensor_model_parallel_rank(), ps.get_tensor_model_parallel_world_size()),
            "expert": (ps.get_expert_model_parallel_rank(), ps.get_expert_model_parallel_world_size()),
            "expert_tensor": (ps.get_expert_tensor_parallel_rank(), ps.get_expert_tensor_parallel_world_size()),
        }
        config = self._chunks[0].config
        features = [name for name, value in vars(config).items() if value]
        tied = any(getattr(c, "share_embeddings_and_output_weights", False) for c in self._chunks)
        return {"groups": groups, "features": features, "tied": tied}
