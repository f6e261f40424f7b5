"""The broker that the tools are tried with."""

from interop_tests.http_api.conftest import leveret_http

__all__ = ["leveret_http"]
