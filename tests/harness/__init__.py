"""What system tests drive a broker with: its process, raw clients, and the accounts kept."""
