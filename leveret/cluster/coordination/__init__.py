"""Coordination through Apache ZooKeeper, as `ports.Coordinator` has it.

Imported only when a cluster is asked for.

    zookeeper       what the event loop uses
    session_keeper  the thread that keeps the session and renews the lease
    kazoo_client    kazoo, and what its answers mean; nothing else imports it
    settings        which servers, and how to speak to them
"""
