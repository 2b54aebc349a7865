"""What environments, policies and both bodies share: state, commands, fleets, metrics, rewards."""
