"""`python -m veca` is the command `veca`."""

import os
import sys

from veca.cli.main import main

CODE = main()
if "RANK" in os.environ:
    # Under torchrun, threads of torch.distributed may outlive its groups and abort the process
    # while the interpreter ends, long after all results are on disk.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(CODE)
sys.exit(CODE)
