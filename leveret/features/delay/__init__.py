"""Delayed and scheduled messages: delivered at their due time.

`rules` reads the due time. `delayed_delivery` intercepts them on publish, `delayed_messages` stores
them, `due_delivery` puts due ones into their queues; `schedules` and `schedule_commands` query and
change pending messages. `store/` is the delayed-message store, which retries use, too.
"""
