"""Orders: an application with pika, its figures by Spark, and a page that shows them.

    shop      publishes orders, and works on them: some fail, are retried, and become dead letters
    figures   a streaming query: orders by minute, as Parquet
    page      what the figures show, as an HTML page
    run       all of it with a node of its own: `make example`

README.md explains it, orders.ipynb is the same to try out.
"""
