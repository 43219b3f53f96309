"""Benchmarks and log-likelihoods through lm-eval."""
