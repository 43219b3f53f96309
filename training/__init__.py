"""How the embedded models were trained: `python -m training.train --help`, in a checkout of the repository.

It needs optax (`pip install ".[train]"`). The package never imports it and does not install it.
"""
