"""A switch that writes only what changed into the parameters of a model that an engine serves. Knows no engine; see wsync.vllm and wsync.sglang.

_recorder watches a load; _regions is what it found, in bytes; _proofs compares it with the files and with what modules answer; _plan
holds what a version changes, for the library to write and to take back."""
