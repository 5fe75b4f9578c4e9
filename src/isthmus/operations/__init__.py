"""The operations of an operator on a namespace's messages, over the wire.

What it is: peeking, removing, sending again, export to a file and import, statistics and back-ups, for
`isthmus namespace …`; all but the last two work on any Service Bus namespace. What it is not: a command line
(`isthmus.cli`), or anything that runs in the broker.
"""
