STALE_ENTRIES_MAX: int
DEAL_SINGLY_MAX: int
CHUNK_OFFSETS_MAX: int
SHARE_PARTS: int

def chunk_offsets(ready_count: int, consumer_count: int) -> int: ...
