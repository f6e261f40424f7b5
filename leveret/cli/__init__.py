"""The command line: `leveret serve` and the administration of nodes."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; the process ends with the command's status."""
    if sys.argv[1:] == ["--version"]:
        from leveret import __version__

        print(f"leveret {__version__}")
        return
    if sys.argv[1:2] == ["health"]:
        from leveret.cli.health import answered  # probes ask every few seconds

        status = answered(sys.argv[2:])
        if status is not None:
            sys.exit(status)
    from leveret.cli.app import app  # importing the package costs nothing

    app()
