"""PyTorch checkpoints as they are published: their names, their `config.json`, their files."""
