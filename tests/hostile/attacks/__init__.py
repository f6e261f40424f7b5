"""The attacks, by what they need. Importing this package registers them all."""

from tests.hostile.attacker import Attack
from tests.hostile.attacks import consuming, management, publishing, strangers, topology

__all__ = ["ATTACKS", "consuming", "management", "publishing", "strangers", "topology"]

ATTACKS = {attack.__name__: attack for attack in Attack.every}
