"""A partition on disk, and the embedded stores: segments, group commit, SQLite, LMDB."""
