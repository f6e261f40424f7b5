"""Jobs for Spark: one module each, whose `JOB` says what it is.

    python -m leveret.spark.jobs JOB …            on this machine
    spark-submit leveret/spark/jobs/__main__.py JOB …   on a cluster
    leveret spark JOB …                           either, by `--master`

    runner    arguments, exit status, what is printed
    job       what jobs are made of: `SparkJob`, and the `JobContext` that they run in

The modules of jobs import pyspark and pyarrow when they run, so that `--help` and refused arguments
take no time, and need no Spark.
"""
