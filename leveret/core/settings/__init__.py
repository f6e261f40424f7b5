"""Arguments and policies: which values are valid, and the settings of a queue that follow."""
