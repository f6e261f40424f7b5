"""Routing: the graph of exchanges and bindings, and the routes through it.

`graph` is that of a virtual host, made of `exchange` and `bindings`; `routes` caches its results,
`walk` follows single messages. `message` is the message as routing sees it, `publishing` sends the
broker's own messages. The exchange types are in leveret.core.exchanges.
"""
