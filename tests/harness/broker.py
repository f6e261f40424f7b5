"""One `leveret serve` process that a test starts, stops, kills and measures."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from tests.support.http import HttpClient
from tests.support.waiting import LIMIT_SECONDS, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
MIB = 1024 * 1024
SERVE = (sys.executable, "-m", "leveret", "serve")


def port_options(*, http: bool, metrics: bool) -> list[str]:
    """Return the options for free ports; what a test does not ask for is not opened."""
    optional = {"--http-port": http, "--prometheus-port": metrics}
    options = ["--port", "0"]
    for name, wanted in optional.items():
        options += [name, "0" if wanted else "-1"]
    return options


def addresses_of(ready: str) -> dict[str, str]:
    """Return what a node's ready line says: HOST:PORT by the name of the port, and `data`."""
    return dict(word.split("=", 1) for word in ready.split()[1:])


class BrokerProcess:
    """A broker on a directory of its own and free ports, new ones after each start.

    It serves AMQP, and where the test asks for it `http`, the management port. `settings` are
    environment variables without their prefix: `disk_free_bytes_min=1`. `files_max` limits the
    files that the process may have open.
    """

    def __init__(
        self,
        data: Path,
        *,
        log: Path | None = None,
        durability: str = "os",
        files_max: int | None = None,
        http: bool = False,
        **settings: object,
    ) -> None:
        self.data = data
        self.durability = durability
        self.settings = settings
        self.limits = () if files_max is None else ("prlimit", f"--nofile={files_max}")
        self.log_path = log or data.parent / f"{data.name}.log"
        self.port = 0
        self.http = http
        self.popen: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def launch(self) -> None:
        """Start the process without waiting until it serves."""
        assert self.popen is None, "one process at a time"
        options = ["--data-dir", str(self.data), "--durability", self.durability]
        options += port_options(http=self.http, metrics=False)
        with self.log_path.open("ab") as output:
            self.popen = subprocess.Popen(
                [*self.limits, *SERVE, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=REPOSITORY,
                env=self._environment(),
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LEVERET")}
        settings = {f"LEVERET_{name.upper()}": str(value) for name, value in self.settings.items()}
        return {**kept, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1", **settings}

    def start(self) -> Self:
        """Start and wait until the broker says that it is ready."""
        starts = len(self._ready_lines())
        self.launch()
        wait_until(lambda: not self.is_alive or len(self._ready_lines()) > starts, "a ready node")
        assert self.is_alive, f"ended with {self.popen.poll()}:\n{self.log()[-4000:]}"
        self.port = int(self.addresses["amqp"].rpartition(":")[2])
        return self

    @property
    def addresses(self) -> dict[str, str]:
        """HOST:PORT of the last start, by the name of the port."""
        return addresses_of(self._ready_lines()[-1])

    def _ready_lines(self) -> list[str]:
        return re.findall(r"^ready amqp=.*\n", self.log(), re.MULTILINE)

    def http_client(self, path: str = "", user: str = "guest", **options: Any) -> HttpClient:
        """Return a client of the management port, for paths below `path`."""
        return HttpClient(self.addresses["http"] + path, user, **options)

    def log(self) -> str:
        """Everything the broker has said, over all its starts."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    @property
    def is_alive(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    @property
    def rss_bytes(self) -> int:
        """Resident memory, as the kernel counts it."""
        pages = Path(f"/proc/{self.popen.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """SIGKILL, if it still runs."""
        if self.popen is not None:
            with suppress(ProcessLookupError):
                self.popen.send_signal(signal.SIGKILL)
            self.popen.wait()
        self.popen = None

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        self.popen.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        """The exit status of a process that was told to stop."""
        try:
            status = self.popen.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"still there after {LIMIT_SECONDS} s:\n{self.log()[-4000:]}"
            ) from None
        self.popen = None
        return status

    def stop(self) -> None:
        """A clean stop, which must succeed."""
        self.terminate()
        status = self.wait()
        assert status == 0, f"ended with {status}:\n{self.log()[-4000:]}"

    def check_untroubled(self) -> None:
        """Nothing happened that the broker itself calls a bug."""
        assert "report this as a bug" not in self.log(), self.log()[-8000:]
        assert "Traceback" not in self.log(), self.log()[-8000:]
