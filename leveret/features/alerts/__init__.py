"""Alerts: `rules` are parameters of a virtual host, `alerting` checks them."""
