"""`python -m convert`."""

import sys

from convert.command import main

sys.exit(main())
