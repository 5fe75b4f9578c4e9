"""The parts of `isthmus.topology.planning.planner`: wanted entities, the comparison of each kind with the existing ones, and the order of changes."""
