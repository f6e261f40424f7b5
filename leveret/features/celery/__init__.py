"""Tasks of Celery with an ETA wait beside their queue until their time.

`rules` reads the ETA, `eta_headers` finds the tasks of a batch, `eta_hold` is the extension of a
queue.
"""
