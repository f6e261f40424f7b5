"""Spark's side of Leveret: topics as tables and streams, by PySpark's data source API.

Nothing else of leveret imports pyspark or pyarrow, which the extra `leveret[spark]` installs. Runs
in the processes of Spark, and talks to the broker over HTTP alone (docs/range-reads.md).

    source            the data source `leveret`; what it makes are
    batch_reader, stream_reader
    read_options      what users write, checked (option_reader, connection_options)
    places, offsets   where reading begins and ends; how far a query has come
    partition_reader  one range of offsets in a worker: chunks become record batches
    servers           requests to the broker, retried
"""
