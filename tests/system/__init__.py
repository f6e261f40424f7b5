"""Tests of a whole broker process: kills, stops, hostile peers, full disks, large backlogs."""
