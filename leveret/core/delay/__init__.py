"""Delayed and scheduled messages, and Celery tasks with an ETA: delivered at their due time.

`delayed_delivery` intercepts them on publish, `delayed_messages` stores them, `due_delivery` puts
due ones into their queues; `schedules` and `schedule_commands` query and change pending messages.
`eta_hold` delays tasks beside their queue.
"""
