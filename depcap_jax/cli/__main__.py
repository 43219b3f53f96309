"""`python -m depcap_jax.cli`: the command `depcap` where it is not installed."""

import sys

from depcap_jax.cli import main

sys.exit(main())
