"""What a broker means: virtual hosts, exchanges, routing, queues, consumers, access.

At the top stands what holds a broker together: `broker` and its `vhost`s with their `topology`, the
`publish_interceptors` of messages, the `turn` of the event loop and its `timers`. The packages are:

    routing, exchanges      where a message goes
    queues, ledgers, logs   where it is kept, who gets it next, how it is written and read
    filtering               who wants it
    waiting, delay, retry   when it is delivered later, or once more
    dead_letters            what becomes of it when nobody took it
    once                    when it must not come twice
    definitions, access     what a broker was told to keep, and who may do what
    telemetry               what a broker tells of itself
"""
