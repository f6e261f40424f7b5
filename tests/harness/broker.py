"""One `leveret serve` process that a test starts, stops, kills and measures."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS_MAX = 60  # two slow cores that others use too
STOP_SECONDS_MAX = 60  # a disk that others use, too, may need most of it for what is not flushed
MIB = 1024 * 1024
SERVE = (
    sys.executable,
    "-m",
    "leveret",
    "serve",
    "--port",
    "0",
    "--http-port",
    "0",
    "--prometheus-port",
    "-1",
)


class BrokerProcess:
    """A broker on a directory of its own and a free port; a new port after each start.

    `settings` are environment variables without their prefix: `disk_free_bytes_min=1`. `files_max`
    limits the files that the process may have open.
    """

    def __init__(
        self,
        data: Path,
        *,
        log: Path | None = None,
        durability: str = "os",
        files_max: int | None = None,
        **settings: object,
    ) -> None:
        self.data = data
        self.durability = durability
        self.settings = settings
        self.limits = () if files_max is None else ("prlimit", f"--nofile={files_max}")
        self.log_path = log or data.parent / f"{data.name}.log"
        self.port = 0
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
        said_before = self.log().count("ready amqp=")
        self.launch()
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            found = re.findall(r"^ready amqp=\S+:(\d+)", self.log(), re.MULTILINE)
            if len(found) > said_before:
                self.port = int(found[-1])
                return self
            assert self.is_alive, f"ended with {self.popen.poll()}:\n{self.log()[-4000:]}"
            time.sleep(0.01)
        raise AssertionError(f"not ready in {START_SECONDS_MAX} s:\n{self.log()[-4000:]}")

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
            status = self.popen.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(
                f"still there after {STOP_SECONDS_MAX} s:\n{self.log()[-4000:]}"
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
