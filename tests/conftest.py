"""Settings that hold for every test."""

from hypothesis import settings

# How long an example takes says something about the machine and its neighbours, not about the code.
settings.register_profile("leveret", deadline=None)
settings.load_profile("leveret")
