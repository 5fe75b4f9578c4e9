"""The Spark queries of a run: their routes, their observation, and their failures."""
