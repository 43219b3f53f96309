"""From PyTorch checkpoints of LLaDA and Dream to `depcap_jax` checkpoints, and back."""
