"""Interface between environments, policies and backends: state, commands, fleets, metrics, rewards."""
