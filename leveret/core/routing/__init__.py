"""Where a message goes: the graph of exchanges and bindings, and the routes through it.

`graph` is that of a virtual host, made of `exchange` and `bindings`; `routes` remembers what it
answered. `message` is what it is asked about, `publishing` sends what the broker itself has to say.
The types of exchanges are in leveret.core.exchanges.
"""
