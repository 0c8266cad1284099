"""`python -m cppo_lab.cli`, for where the `cppo` command is not on the path."""

import sys

from cppo_lab.cli import main

sys.exit(main())
