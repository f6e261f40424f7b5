"""Settings that hold for every test."""

import signal

from hypothesis import settings

# How long an example takes says something about the machine and its neighbours, not about the code.
settings.register_profile("leveret", deadline=None)
settings.load_profile("leveret")

# Whoever runs tests behind his shell has them ignore interrupts, and so would every process that a
# test starts and interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)
