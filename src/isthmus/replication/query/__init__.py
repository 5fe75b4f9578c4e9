"""The Spark queries of a run: which routes each carries, how it is watched, and why it fails."""
