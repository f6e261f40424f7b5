"""Commands that people type: `leveret serve` and the administration of users and permissions."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line; the process ends with the command's status."""
    from leveret.cli.app import app  # importing the package costs nothing

    app()
