"""`python -m convert SOURCE TARGET`: the conversion script, over `depcap_jax.checkpoints`."""

import sys

from depcap_jax.cli.commands.depcap_convert import main

sys.exit(main())
