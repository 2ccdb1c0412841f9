"""`python -m veca` is the command `veca`."""

import sys

from veca.cli.main import main

sys.exit(main())
