"""Three nodes and the ZooKeeper that coordinates them, on one machine: `make cluster`."""
