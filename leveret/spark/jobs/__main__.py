"""Entry of the jobs, as a module and as a file for spark-submit."""

from __future__ import annotations

import os
import sys

from leveret.spark.jobs.runner import main

if __name__ == "__main__":
    # Spark's JVM has this process's standard output. What it prints there goes to standard error:
    # standard output has the summary and nothing else.
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)
        sys.exit(main(sys.argv[1:], output))
