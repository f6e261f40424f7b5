"""Tests of replication: its machines in a small simulator, and the logs of stores."""
