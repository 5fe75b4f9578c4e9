"""The execution of steps, which process messages between source and target.

What it is: one short module per step, and the composition of a route's steps (`chain`). Most steps are functions of one message, and
adjacent ones share one Python worker (`chain.row_stage`); the steps `python` and `sql` are functions of a DataFrame
(`custom`). How they are declared: `isthmus.topology.step`; how to use them: docs/how-to/change-messages-on-the-way.md.
"""
