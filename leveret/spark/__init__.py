"""Spark's side of Leveret: topics as tables and streams, by PySpark's data source API.

Nothing else of leveret imports pyspark or pyarrow, which the extra `leveret[spark]` installs. Runs
in the processes of Spark, and talks to the broker over HTTP alone (docs/range-reads.md).

    source            the data source `leveret`; what it makes are
    batch_reader, stream_reader
                      tables and streams of topics, and what they share:
    options           what users write, checked
    places, offsets   where reading begins and ends; how far a query has come
    partition_reader  ranges of offsets in a worker: chunks become record batches
    arrow_batches     record batches, with property_columns made of content headers
    archive_reader    what an archive has of a topic (archivePath), by its manifest and files
    refused_reader    streams whose options are wrong
    queue_reader      streams that consume a queue, by queue_options and queue_batches
    batch_writer, stream_writer
                      tables and streams that are written, by write_options:
    part_stager       rows of a task in a worker: they are staged as parts of a batch
    message_columns   record batches become chunks, with content_headers made of columns
    value_formats, value_columns, body_columns, decoded_bodies
                      bodies decoded on request: options, columns, malformed ones
    json_values, json_rows, json_shape
                      bodies of JSON: in blocks, and one by one
    avro_values, avro_schemas, schema_ids
                      bodies of Avro, and the schemas that they are written with
    servers           requests to the broker, retried
    jobs              `leveret spark JOB`: archive, verify, replay, export, usage, dlq
    reports           pages with charts, for the jobs
"""
