"""Storage on disk: segments, group commit, and the embedded stores SQLite and LMDB."""
