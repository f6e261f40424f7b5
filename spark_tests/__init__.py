"""The data source in a real Spark: `make spark`."""
