"""Delayed and scheduled messages, and Celery tasks with an ETA: delivered later, at their time.

`delayed_delivery` takes them on their way in, `delayed_messages` keeps them in a delayed-message
store, `due_delivery` puts them into their queues; `schedules` and `schedule_commands` change what
is pending. `eta_hold` holds tasks beside their queue.
"""
