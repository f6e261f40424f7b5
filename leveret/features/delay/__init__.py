"""Delayed and scheduled messages: delivered at their due time.

`rules` reads the due time. `delayed_delivery` intercepts them on publish, `delayed_messages` stores
them, `due_delivery` puts due ones into their queues; `schedules` and `schedule_commands` query and
change pending messages.

`store` has the delayed-message stores, which retries and Celery's tasks use, too: internal topics
of records with due times. `due_index` is their durable index, `wheel` the timing wheel of a node,
`reader` reads what is due within seconds, `search` filters what waits.
"""
