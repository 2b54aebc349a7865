"""The leaderboard: entries that say what a policy reached, and their validation by running them again."""
