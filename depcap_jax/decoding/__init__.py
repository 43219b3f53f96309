"""The decoding loop, in pure functions of arrays: a model is a Protocol; only jax, numpy and chex are known."""
