"""A broker in a cluster: what it shares with other nodes, and how it asks them.

definitions ── changed on the controller, followed by all others
placement ──── opens a partition where this node leads it, and a stand-in where it does not
forwarding ─── what clients do on one node with a partition that another one leads
transactions ─ atomic writes over several leaders, decided in logs with replicas
operating ──── moves, leadership that is handed over, what administrators ask
"""
