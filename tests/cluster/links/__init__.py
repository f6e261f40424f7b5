"""Tests of links between nodes."""
