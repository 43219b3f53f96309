"""DepCap and its baselines: fast decoding of diffusion language models in JAX."""
