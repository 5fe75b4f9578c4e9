"""The parts of `isthmus.topology.planning.planner`: what is wanted, each kind of entity against what exists, and the order of changes."""
