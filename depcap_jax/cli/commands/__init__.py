"""One module per command, named as it is typed: `depcap generate` is depcap_generate.py."""
